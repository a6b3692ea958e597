"""The errors that end a command. Each is one or two lines for a person; `cli.main` alone catches them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CoroutineType
from typing import Any

FAILED = 2
"""Exit code of a command that could not run."""
INTERRUPTED = 130
"""Exit code after Ctrl-C (128 + SIGINT)."""


class HookcliError(Exception):
    """Something that a person can act on.

    `reports` holds the Reports that the probes had until the error, so that nothing is lost. `own`: in a run of several
    processes, only this one has the error and reports it; otherwise all have the same, and the first reports it.
    `shown`: a report on the terminal has the message; `documented`: JSON on stdout has it.
    """

    exit_code = FAILED
    own = False
    shown = False
    documented = False

    def __init__(self, message: str, reports: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.reports = tuple(reports)

    @property
    def id(self) -> str:
        """The id of its class in JSON."""
        return next(f"HKE{ERRORS.index(kind):03}" for kind in type(self).__mro__ if kind in ERRORS)

    def to_dict(self) -> dict[str, object]:
        """The error as a JSON object: its id, its message, and what it is about."""
        about = {name: getattr(self, name) for name in ("option", "fqn") if getattr(self, name, "")}
        return {"id": self.id, "message": str(self), "exit_code": self.exit_code, **about}


class UsageError(HookcliError):
    """A wrong name of a model, an option or a file, or options that contradict each other.

    `option` names the option whose value is wrong, without dashes; "" for none.
    """

    def __init__(self, message: str, reports: Sequence[Any] = (), option: str = "") -> None:
        super().__init__(message, reports)
        self.option = option


@contextmanager
def about_option(option: str) -> Iterator[None]:
    """A block whose UsageErrors are about this option, if they name no other."""
    try:
        yield
    except UsageError as error:
        error.option = error.option or option
        raise


class RefusedError(UsageError):
    """PyTorch accepts no hooks of the requested kind there."""


class OneTensorError(RefusedError):
    """Full backward hooks on these modules would give the model different tensors in place of one.

    Not for a person: the run is made again, without such hooks to find `all` of these modules, then without theirs.
    """

    def __init__(self, fqns: Iterable[str], all: bool) -> None:  # noqa: A002
        self.fqns = frozenset(fqns)
        self.all = all
        super().__init__(f"full backward hooks change what {', '.join(sorted(self.fqns))} computes")

    def __reduce__(self) -> tuple[Any, ...]:
        """Copying a probe copies the error, which calls its constructor again."""
        return type(self), (self.fqns, self.all)


class NoGradientsError(UsageError):
    """No output of the model depends on a parameter, so there is nothing to differentiate."""


class NoLossError(NoGradientsError):
    """The model returned no floating-point tensor, so that only a loss of the user's own can be differentiated."""


class UnknownRowError(UsageError, KeyError):
    """A report has no row of a name, or several; it is also a KeyError, because `report["name"]` raises it."""

    __str__ = Exception.__str__  # a KeyError's own puts the message in quotes


class PluginError(HookcliError):
    """A plugin that is unknown, ambiguous, or fails to load. The message names its distribution."""


class ModelError(HookcliError):
    """The model itself failed while it was built or run; `fqn` names the module that failed, "" for none.

    Of an operator, `source` is the file and line of the program that called it.
    """

    def __init__(self, message: str, reports: Sequence[Any] = (), fqn: str = "", source: str = "") -> None:
        super().__init__(message, reports)
        self.fqn, self.source = fqn, source


class CommHookError(HookcliError):
    """A communication hook failed, or returned what it must not; its cause is the hook's own error, if there is one."""


class ToldError(HookcliError):
    """An error of a run in several processes that another process reports."""


class BugError(HookcliError):
    """A bug in hookcli: please report it, with the traceback on stderr."""


ERRORS: tuple[type[HookcliError], ...] = (
    *(BugError, UsageError, RefusedError, NoGradientsError, UnknownRowError, PluginError, ModelError, CommHookError),
    HookcliError,
)
"""The classes that JSON tells apart, by the number in their ids: a new one goes to the end, and none is taken out."""


def error_ids() -> dict[str, str]:
    """The ids of errors in JSON, with what each means."""
    told = {f"HKE{number:03}": str(kind.__doc__).partition("\n\n")[0] for number, kind in enumerate(ERRORS)}
    return told | {"HKE008": "One of several processes died, or did not answer."}


class ProcessesWanted(Exception):  # noqa: N818 - a request to `cli.main`, not an error
    """A request to run the command line in this number of processes."""

    def __init__(self, processes: int, debug: bool) -> None:
        super().__init__(processes)
        self.processes = processes
        self.debug = debug


class OverdueError(TimeoutError):
    """A process missed its deadline. Not for a person: another error reports it."""


class StateDictError(Exception):
    """A state dict does not fit its model. Not for a person: the engine makes a ModelError of it."""


class UserCode:
    """Context manager around the user's code (a model, a file, a plugin): `as_error` makes a HookcliError of whatever
    that code raises.

    Also exceptions that are no `Exception`: SystemExit, asyncio.CancelledError, GeneratorExit. A KeyboardInterrupt, and
    a HookcliError, which has its message already, pass as they are.
    """

    def __init__(self, as_error: Callable[[BaseException], HookcliError]) -> None:
        self._as_error = as_error

    def __enter__(self) -> None:
        """Nothing is needed to run it."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, (HookcliError, KeyboardInterrupt)):
            raise self._as_error(error) from error


def refuse_coroutine(value: object, what: str, kind: type[HookcliError] = UsageError) -> None:
    """Raise the error if the value is a coroutine of an async function, which PyTorch would never await."""
    if isinstance(value, CoroutineType):
        value.close()  # or Python would warn, later, that it was never awaited
        raise kind(f"{what} is async: calling it gives a coroutine, which nobody awaits; make it a plain function")


def message_of(error: BaseException) -> str:
    """The exception's message, even if its `__str__` fails."""
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
    text = f"{lines[0]} {lines[1][:_SECOND]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return f"{class_name(error)}: {shortened(_CONTROL.sub('?', _ESCAPES.sub('', text).replace(chr(9), ' ')))}"


def shortened(text: str, most: int = 250) -> str:
    """The text, cut to `most` characters, with its full length."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


# What must reach no terminal, file or annotation: colours and cursor movements (ECMA-48, section 5.4), and the rest.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SECOND = 200  # characters of the line below a heading


def unknown(
    what: str,
    typed: str,
    known: Iterable[str],
    *,
    also: Sequence[str] = (),
    see: str = "",
    related: Callable[[re.Pattern[str]], Sequence[str]] = lambda _: (),
) -> str:
    """One line for a wrong name: what was typed, the nearest right names, and where all of them are listed.

    `also`: further spellings that are right, and need not be listed. `related`: given a pattern for the wrong name as a
    word or its beginning, returns names to suggest if none is alike.
    """
    typed = shortened(typed, _QUOTED)
    names = list(known) if isinstance(known, (tuple, list)) else sorted(known)
    near = nearest(typed, [*names, *also])
    if not near and len(typed) >= _WORD:  # a part of a name: `dead`, of dead-units
        part = re.compile(rf"\b{re.escape(typed)}", re.IGNORECASE)
        near = [name for name in names if part.search(name)][:3] or list(related(part))[:3]
    guess = f"; did you mean {' or '.join(near)}?" if near else ""
    if near and (see or len(names) > _LISTED):
        return f"unknown {what} {typed!r}{guess}"
    listing = see or (f"choose from: {', '.join(names)}" if names else "there are none")
    return f"unknown {what} {typed!r}{guess}{' ' if guess else '; '}{f'({listing})' if guess else listing}"


def nearest(typed: str, names: Sequence[str], most: int = 3) -> list[str]:
    """The names that `difflib.get_close_matches` finds, ignoring case; ties go to the longer common prefix."""
    from difflib import SequenceMatcher  # only mistakes need it

    if exact := [name for name in names if name.lower() == typed.lower()]:
        return exact[:most]
    ranked = []
    matcher = SequenceMatcher(b=_without_dashes(typed))
    for name in names:
        matcher.set_seq1(_without_dashes(name))
        if matcher.real_quick_ratio() >= _CLOSE and (ratio := matcher.ratio()) >= _CLOSE:
            same = [a == b for a, b in zip(typed.lower(), name.lower(), strict=False)]
            ranked.append((-ratio, -[*same, False].index(False), name))
    return [name for *_, name in sorted(ranked)[:most]]


def _without_dashes(name: str) -> str:
    """The name in lower case, without the dashes that all options begin with: they make short names look alike."""
    return name.lower().lstrip("-")


_QUOTED = 80  # characters of a wrong name
_LISTED = 8  # choices that a message lists beside the nearest
_WORD = 3  # letters that a part of a name has at least
_CLOSE = 0.6  # as in get_close_matches


def carry(error: BaseException, reports: Iterable[Any]) -> None:
    """Have an error or interrupt carry the Reports of what was measured until then, as its `reports`."""
    error.reports = tuple(reports)  # type: ignore[attr-defined]


@contextmanager
def kept_if_interrupted(reports: Callable[[], Iterable[Any]]) -> Iterator[None]:
    """A block in which Ctrl-C raises a KeyboardInterrupt that carries these reports, made then."""
    try:
        yield
    except KeyboardInterrupt as error:
        carry(error, reports())
        raise
