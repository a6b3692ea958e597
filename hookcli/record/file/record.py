"""What the lines of a record hold: a header, a window for each step that was looked at, what ended it.

A record is JSON lines, appended as they come, so that whatever ends the script leaves a file that is whole up to its
last line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from hookcli.report import Report, relaxed, strict
from hookcli.report.files import Fits, is_count, is_figure, is_mapping, is_text, listed, optional, require, sound

RUN_SCHEMA = 1


_FINITE: Fits = lambda value: is_figure(value) and math.isfinite(value)  # noqa: E731
FITS: Mapping[str, Fits] = {
    **dict.fromkeys(("name", "started", "model", "phase", "fqn", "what", "cause"), is_text),
    **dict.fromkeys(("argv", "notes"), listed(is_text)),
    **dict.fromkeys(("every", "step", "forwards", "watched", "nan", "inf"), is_count),
    **dict.fromkeys(("no_grad_forwards", "steps", "windows", "parameters"), is_count),
    **dict.fromkeys(("forward", "program_steps"), optional(is_count)),
    "losses": listed(is_figure),
    **dict.fromkeys(("seconds", "plain_seconds"), optional(_FINITE)),
    "complete": lambda value: isinstance(value, bool),
    "exit_code": is_figure,
    "error": optional(is_text),
    "versions": lambda value: is_mapping(value) and all(map(is_text, value.values())),
    "others": lambda value: is_mapping(value) and all(map(is_count, value.values())),
    "models": listed(lambda value: _is_ran(value)),
}
"""What the fields of lines hold, by their names."""

_ADDED = ("program_steps",)  # fields that records of before lack


def _is_ran(value: Any) -> bool:
    """Whether a mapping is one of a `Ran`; the first records had no notes there."""
    names = {item.name for item in fields(Ran)}
    return (
        is_mapping(value) and names - {"notes"} <= value.keys() and all(FITS[n](value[n]) for n in names & value.keys())
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """One line: what it is, beside its fields."""

    kind: ClassVar[str]
    fits: ClassVar[Mapping[str, Fits]] = {}

    def to_dict(self) -> dict[str, Any]:
        """The line as strict JSON has it."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        reports = {name: [r.to_dict() for r in values[name]] for name in ("reports",) if name in values}
        return {"line": self.kind} | dict(strict(values | reports))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse. Raises KeyError, TypeError or ValueError for a line that is not whole, or not of this kind."""
        given = [item.name for item in fields(cls) if item.name in data or item.name not in _ADDED]
        values = {name: relaxed(data[name]) for name in given if name != "reports"}
        if any(item.name == "reports" for item in fields(cls)):
            values["reports"] = tuple(sound(Report.from_dict(item)) for item in data["reports"])
        require(values, {**FITS, **cls.fits})
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Header(_Line):
    """The first line: what was run, and how it was looked at.

    `name` is the script's or the model's, `argv` the script's arguments with its name first (empty for a `watch` inside
    a program), `started` a time in UTC as ISO 8601 has it, `every` how many steps are between two that are looked at.
    """

    kind: ClassVar[str] = "run"

    name: str
    argv: Sequence[str]
    started: str
    every: int
    versions: Mapping[str, str]
    schema: int = RUN_SCHEMA


@dataclass(frozen=True, slots=True)
class Window(_Line):
    """What was seen of one model in one step that was looked at.

    `model` tells models apart ("Net", "Net #2"). `phase`: "train" where gradients were recorded, else "no_grad", whose
    windows are single forwards. `step` counts the steps of the optimizer that has the model's parameters, from 0;
    without one, the model's forwards. `forward` counts those without grad from the last training step on, where there
    is an optimizer; else None. `forwards`: how many there were in this window, and `watched` of them. `losses`: what
    `backward()` was called on whose gradients the program kept until the optimizer's step, a number per call.
    `seconds`: how long the step took with hooks on, from its first forward to its end, `plain_seconds` how long one
    took on average since the window before, without; None where that isn't known. `notes` say what can't be seen, or
    how figures are meant. Rows of `reports` (probes "activations", "grads", "updates") are one per module or parameter:
    of several calls and forwards, exactly merged; `calls` counts them. Not `complete`: the program, or an exception,
    ended before the step did.
    """

    kind: ClassVar[str] = "window"

    model: str
    phase: str
    step: int
    reports: Sequence[Report]
    forward: int | None = None
    forwards: int = 1
    watched: int = 1
    losses: Sequence[float] = ()
    seconds: float | None = None
    plain_seconds: float | None = None
    notes: Sequence[str] = ()
    complete: bool = True

    @property
    def loss(self) -> float | None:
        """The loss of the step: the sum over its backward passes; None where there was none of a single number."""
        return sum(self.losses) if self.losses else None


@dataclass(frozen=True, slots=True)
class Bad(_Line):
    """The first NaN or infinity: where, what (`what`: "output", "gradient", "loss", "parameter"), and in `reports` the
    rows of the last modules before it, the bad one last. `cause`: what was not finite before that, as far as known."""

    kind: ClassVar[str] = "bad"

    model: str
    phase: str
    step: int
    fqn: str
    what: str
    nan: int
    inf: int
    reports: Sequence[Report]
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Ran:
    """A model that ran: how many forwards it made with and without gradients, its steps, and how many windows."""

    model: str
    forwards: int
    no_grad_forwards: int
    steps: int
    windows: int
    parameters: int
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class End(_Line):
    """The last line, where the script came to an end by itself or by an exception.

    `exit_code` as a shell would see it; `error` one line that names the exception. `models` as plain mappings of `Ran`.
    `others`: modules without parameters that were called by themselves (a loss), and how often. `program_steps`: how
    many steps the program made, where one that is of several models or optimizers counts once; None in older records.
    """

    kind: ClassVar[str] = "end"
    fits: ClassVar[Mapping[str, Fits]] = {"seconds": _FINITE}

    exit_code: int
    error: str | None
    seconds: float
    models: Sequence[Mapping[str, Any]]
    others: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()
    program_steps: int | None = None


Line = Header | Window | Bad | End
LINES: Mapping[str, type[Line]] = {kind.kind: kind for kind in (Header, Window, Bad, End)}
