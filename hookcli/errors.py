"""The errors that end a command. Each is one or two lines for a person; `cli.main` alone catches them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from types import CoroutineType
from typing import Any

FAILED = 2
"""The exit code of a command that could not run (design, section 3)."""
INTERRUPTED = 130
"""That of one that Ctrl-C ended, as shells and Typer have it."""


class HookcliError(Exception):
    """Something that a person can act on.

    `reports` holds the Reports of what the probes had measured until then, so that nothing is lost. `own`: in a run of
    several processes it is this one's to tell; otherwise all have it alike, and the first tells it.
    """

    exit_code = FAILED
    own = False

    def __init__(self, message: str, reports: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.reports = tuple(reports)


class UsageError(HookcliError):
    """A model, an option or a file that was named wrongly, or that does not fit the others."""


class RefusedError(UsageError):
    """PyTorch takes no hooks of a kind where they were asked for."""


class OneTensorError(RefusedError):
    """Full backward hooks on these modules would give the model different tensors in place of one.

    Not for a person: the run is made again, without such hooks to find `all` of these modules, then without theirs.
    """

    def __init__(self, fqns: Iterable[str], all: bool) -> None:  # noqa: A002
        self.fqns = frozenset(fqns)
        self.all = all
        super().__init__(f"full backward hooks change what {', '.join(sorted(self.fqns))} computes")

    def __reduce__(self) -> tuple[Any, ...]:
        """A probe that holds one is copied, by which an exception is made anew."""
        return type(self), (self.fqns, self.all)


class NoGradientsError(UsageError):
    """Nothing that the model returned leads back to a parameter, so there is nothing to differentiate."""


class PluginError(HookcliError):
    """A plugin that is unknown, ambiguous, or fails to load. The message names its distribution."""


class ModelError(HookcliError):
    """The model itself failed while it was built or run."""


class CommHookError(HookcliError):
    """A communication hook failed, or returned what it must not; its cause is the hook's own error, if there is one."""


class ToldError(HookcliError):
    """An error of a run in several processes that another of them tells."""


class ProcessesWanted(Exception):  # noqa: N818 - a request to `cli.main`, not an error
    """The command line is to be run in so many processes."""

    def __init__(self, processes: int, debug: bool) -> None:
        super().__init__(processes)
        self.processes = processes
        self.debug = debug


class OverdueError(TimeoutError):
    """A process did not come to an end of what it is doing in time. Not for a person: it ends up in another error."""


class StateDictError(Exception):
    """A model's state dict does not load into the model. Not for a person: the engine makes a ModelError of it."""


class UserCode:
    """A `with` block that runs code of the user's (a model, a file, a plugin): whatever it raises becomes the error
    that `told` makes of it.

    Also exceptions that are no `Exception`: SystemExit, asyncio.CancelledError, GeneratorExit. A KeyboardInterrupt, and
    a HookcliError, which has its message already, pass as they are.
    """

    def __init__(self, told: Callable[[BaseException], HookcliError]) -> None:
        self._told = told

    def __enter__(self) -> None:
        """Nothing is needed to run it."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, (HookcliError, KeyboardInterrupt)):
            raise self._told(error) from error


def refuse_coroutine(value: object, what: str, kind: type[HookcliError] = UsageError) -> None:
    """Raises the error for what an async function returned, which PyTorch would never await."""
    if isinstance(value, CoroutineType):
        value.close()  # or Python would warn, later, that it was never awaited
        raise kind(f"{what} is async: calling it gives a coroutine, which nobody awaits; make it a plain function")


def message_of(error: BaseException) -> str:
    """The exception's own text, also where its `__str__` fails."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        return f"(no message: its __str__ raised {class_name(problem)})"


def class_name(value: object) -> str:
    """The name of a value's class, whatever the class makes of `__name__`."""
    return str(type.__dict__["__name__"].__get__(type(value)))


def in_brief(error: BaseException) -> str:
    """`KeyError: 'lost'`: the class and the message on one line, shortened, without what drives a terminal.

    Of a message of several lines the first; of a heading (`Error(s) in loading state_dict for X:`) also the second.
    """
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()] or ["(no message)"]
    said = f"{lines[0]} {lines[1][:_SECOND]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return f"{class_name(error)}: {shortened(_CONTROL.sub('?', _ESCAPES.sub('', said).replace(chr(9), ' ')))}"


def shortened(text: str, most: int = 250) -> str:
    """The text, of which no more than `most` characters are kept."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


# What must reach no terminal, file or annotation: colours and cursor movements (ECMA-48, section 5.4), and the rest.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SECOND = 200  # characters of the line below a heading


def unknown(what: str, given: str, known: Iterable[str], *, see: str = "") -> str:
    """One line for a wrong name: what was given, the nearest right names, and where all of them are listed."""
    names = sorted(known)
    if near := nearest(given, names):
        return f"unknown {what} {given!r}; did you mean {' or '.join(near)}?"
    listing = see or (f"choose from: {', '.join(names)}" if names else "there are none")
    return f"unknown {what} {given!r}; {listing}"


def nearest(given: str, names: Sequence[str], most: int = 3) -> list[str]:
    """What `difflib.get_close_matches` finds, whatever the case; of equally close ones those that begin alike."""
    from difflib import SequenceMatcher  # only mistakes need it

    ranked = []
    matcher = SequenceMatcher(b=given.lower())
    for name in names:
        matcher.set_seq1(name.lower())
        if matcher.real_quick_ratio() >= _CLOSE and (ratio := matcher.ratio()) >= _CLOSE:
            same = [a == b for a, b in zip(given.lower(), name.lower(), strict=False)]
            ranked.append((-ratio, -[*same, False].index(False), name))
    return [name for *_, name in sorted(ranked)[:most]]


_CLOSE = 0.6  # as in get_close_matches
