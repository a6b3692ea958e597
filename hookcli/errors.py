"""The errors that end a command. Each is one or two lines for a person; `cli.main` alone catches them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    Not for a person: the run is made again without these hooks.
    """

    def __init__(self, fqns: Iterable[str]) -> None:
        self.fqns = frozenset(fqns)
        super().__init__(f"full backward hooks change what {', '.join(sorted(self.fqns))} computes")


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


def unknown(what: str, given: str, known: Iterable[str], *, see: str = "") -> str:
    """One line for a wrong name: what was given, the nearest right names, and where all of them are listed."""
    names = sorted(known)
    if near := _nearest(given, names):
        return f"unknown {what} {given!r}: did you mean {' or '.join(near)}?"
    listing = see or (f"there are {', '.join(names)}" if names else "there are none")
    return f"unknown {what} {given!r}: {listing}"


def _nearest(given: str, names: Sequence[str], most: int = 3) -> list[str]:
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
