"""The lines of a record: a header, each recorded step, the losses of all steps, the settings of modules, the
first non-finite value, the end; and the lines of capabilities' parts.

A record is JSON lines, appended one by one, so that whatever ends the script leaves a file that is whole up to its last
line. Reports of recorded steps are packed (`hookcli.record.file.packing`); in records of schema 1 they were JSON.
Schema 3 has added the losses, the settings of modules, and `at`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from hookcli.table import Report, Row, strict
from hookcli.table.compilation import Compilation

SHARDED = "parameters or outputs are sharded: their figures are of this rank's shard alone"
"""The note on a step of one rank."""
RUN_SCHEMA = 3
LAYOUT = "layout"  # the kind of a line that defines a layout of reports, by its `id`


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a record. `kind` tells in JSON which one it is."""

    kind: ClassVar[str]

    def to_dict(self, packed: str | None = None) -> dict[str, Any]:
        """The line as strict JSON; `packed` stands for its reports, if given."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        if "reports" in values:
            values["reports"] = [r.to_dict() for r in values["reports"]] if packed is None else packed
        return {"line": self.kind} | dict(strict(values))


NOT_RECORDED = ("nothing was recorded from then on", "nothing of it is left")
"""The ends of notes on a record that could not be written to its end, or was deleted meanwhile."""


@dataclass(frozen=True, slots=True)
class Header(Line):
    """The first line: what was run, and how it was recorded.

    `name` is the script's or the model's; `argv` the script's name and arguments (empty for a `watch` inside a
    program); `started` a time in UTC (ISO 8601); `every` the interval between recorded steps, 0 without a fixed one.
    `rank` is the process's number among the program's `ranks` processes. `launch` is the same for a program and its
    children, or for the ranks of one launcher; `process`, the id of the process that `hookcli run` became, for all that
    it started.
    """

    kind: ClassVar[str] = "run"

    name: str
    argv: Sequence[str]
    started: str
    every: int
    versions: Mapping[str, str]
    schema: int = RUN_SCHEMA
    rank: int = 0
    ranks: int = 1
    launch: str = ""
    process: int = 0


@dataclass(frozen=True, slots=True)
class RecordedStep(Line):
    """Measurements of one model in one recorded step.

    `model` tells models apart ("Net", "Net #2"). `phase` is "train" for forwards with gradients, else "no_grad", where
    a step is a single forward. `step` counts the steps of the optimizer that holds the model's parameters, from 0; or
    the model's forwards, without one. `forward` counts forwards without gradients since the last training step; None
    with gradients, and for a model without an optimizer. `forwards` is the number of forwards in this step,
    `observed_forwards` of them with hooks on. `losses` are the numbers on which `backward()` was called, one per call,
    if the program kept their gradients until the optimizer's step. `seconds` is the duration of the step with hooks,
    from its first forward to its end, `plain_seconds` the mean without hooks since the previous recorded step; None if
    unknown. `at`: seconds from the begin of the run to when the step was handed on; None in records before schema 3.
    `notes` say what could not be observed, or how to read a figure. `reports` (probes "activations", "grads",
    "updates") have one row per module or parameter, merged exactly over `calls` calls. `complete` is False if the
    program or an exception ended the step early. `weights` is the digest by which a part compares ranks after the step,
    `errors` how many of these the checks have found; the index holds both as well, so that no step has to be read.
    """

    kind: ClassVar[str] = "step"

    model: str
    phase: str
    step: int
    reports: Sequence[Report]
    forward: int | None = None
    forwards: int = 1
    observed_forwards: int = 1
    losses: Sequence[float] = ()
    seconds: float | None = None
    plain_seconds: float | None = None
    notes: Sequence[str] = ()
    complete: bool = True
    at: float | None = None
    weights: str = ""
    errors: int = 0

    @property
    def loss(self) -> float | None:
        """The loss of the step: the sum over its backward passes; None without a pass from single numbers."""
        return sum(self.losses) if self.losses else None

    def with_verdict_of(self, last: RecordedStep) -> RecordedStep:
        """This step, with the verdict of the checks on all steps up to the `last` one, if that is one on them all."""
        earlier, later = self.verdict, last.verdict
        covers = earlier and later and {*earlier.meta["checks"]} <= {*later.meta["checks"]}
        return self.with_verdict(later) if later and covers else self

    @property
    def probes(self) -> Sequence[str]:
        """The probes whose reports it has, each once."""
        return [*dict.fromkeys(report.probe for report in self.reports)]

    @property
    def verdict(self) -> Report | None:
        """The findings of the checks; None if it was not judged."""
        return next((report for report in self.reports if report.probe == "check"), None)

    def with_verdict(self, verdict: Report) -> RecordedStep:
        """This step with another verdict."""
        return replace(self, reports=[verdict if report.probe == "check" else report for report in self.reports])

    def rows(self, probe: str) -> Sequence[Row]:
        """The rows of a probe's report; none without one."""
        return next((report.rows for report in self.reports if report.probe == probe), ())

    def totals(self, probe: str) -> Mapping[str, Any]:
        """The totals of a probe's report; none without one."""
        return next((report.totals for report in self.reports if report.probe == probe), {})

    def parameter_grads(self) -> list[Row]:
        """The rows of the gradients of parameters."""
        return [row for row in self.rows("grads") if row.get("kind") == "parameter"]


Key = tuple[str, str]  # a model's name and a phase


@dataclass(frozen=True, slots=True)
class StepEntry:
    """An entry of a record's index: the step, and where its line begins."""

    model: str
    phase: str
    step: int
    forward: int | None
    line: int
    offset: int
    complete: bool = True
    weights: str = ""
    errors: int = 0

    @property
    def key(self) -> Key:
        """Its model and phase."""
        return self.model, self.phase


@dataclass(frozen=True, slots=True)
class NonFinite(Line):
    """The first NaN or infinity of the run, with counts of both.

    `what` is "output", "gradient", "parameter gradient" or "loss", or "backward of" a call. `reports` hold the rows
    before it, the non-finite one last. `cause` says what led to it, as far as known. `kept` says how to reproduce it,
    if that was asked for.
    """

    kind: ClassVar[str] = "non_finite"

    model: str
    phase: str
    step: int
    fqn: str
    what: str
    nan: int
    inf: int
    reports: Sequence[Report]
    cause: str = ""
    kept: str = ""


@dataclass(slots=True)
class ModelRun:
    """Counts of a model that ran, or of several that share a name; they outlive the models.

    Counts forwards with and without gradients, steps, the steps with gradients that were recorded, and the forwards
    without gradients that were recorded, or left out because of a limit (`--no-grad`).
    """

    model: str
    forwards: int = 0
    no_grad_forwards: int = 0
    steps: int = 0
    recorded_steps: int = 0
    parameters: int = 0
    notes: Sequence[str] = ()
    left_out: int = 0
    recorded_forwards: int = 0

    @property
    def is_told_of(self) -> bool:
        """True if a step or forward was recorded, or a note says why none was."""
        return bool(self.recorded_steps or self.recorded_forwards or self.notes)

    def count_recorded(self, phase: str) -> None:
        """Count a step of this phase that was recorded."""
        if phase == "train":
            self.recorded_steps += 1
        else:
            self.recorded_forwards += 1

    def note(self, text: str) -> None:
        """Add a note, once."""
        self.notes = tuple(dict.fromkeys((*self.notes, text)))


@dataclass(frozen=True, slots=True)
class End(Line):
    """The last line, written when the script ends, by itself or by an exception.

    `exit_code` as a shell sees it; None if the program ended without an uncaught exception, perhaps by `sys.exit`,
    whose code Python tells nobody. `error` names the exception in one line. `models` are mappings of `ModelRun`.
    `others` counts calls of modules without parameters outside any model (a loss). `program_steps` counts the steps of
    the program: one that several models or optimizers share counts once. `hookcli_seconds` is hookcli's own work within
    `seconds`. `compiled` is the work of torch.compile in the process, as `Compilation.to_dict` has it; empty without
    any.
    """

    kind: ClassVar[str] = "end"

    exit_code: int | None
    error: str | None
    seconds: float
    models: Sequence[Mapping[str, Any]]
    others: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()
    program_steps: int = 0
    hookcli_seconds: float = 0.0
    compiled: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_cut(self) -> bool:
        """True if the record could not be written to its end."""
        return any(note.endswith(NOT_RECORDED) for note in self.notes)

    @property
    def compilation(self) -> Compilation | None:
        return Compilation.from_dict(self.compiled) if self.compiled else None


@dataclass(frozen=True, slots=True)
class StepLosses(Line):
    """The losses of consecutive steps of one model, recorded or not, from the step `first` on.

    Each is the sum over the backward passes whose gradients the step took; None if it is not known. If not `taken`, the
    program skipped the optimizer's step at a loss that was not finite, before the step `first`. `short` are the steps
    that took fewer backward passes than the step before each, so that their loss is a smaller sum.
    """

    kind: ClassVar[str] = "losses"

    model: str
    first: int
    values: Sequence[float | None]
    taken: bool = True
    short: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class PartLine(Line):
    """The base of lines that a part of a capability writes, on a step of a model."""

    model: str
    step: int

    @property
    def place(self) -> str:
        """The module that it is about; "" for the whole model."""
        return ""

    @property
    def said(self) -> str:
        """The text to print while the program runs; "" for none. The steps after it are recorded."""
        return ""

    @property
    def is_news(self) -> bool:
        """True if that is said at once, and not only where someone follows the record."""
        return True

    @property
    def ends_program(self) -> bool:
        """True if the program is to end after it, with exit code 1."""
        return False

    def of_rank(self, rank: int) -> Self:
        """The line in the record of all ranks."""
        return self


@dataclass(frozen=True, slots=True)
class ModelSettings(Line):
    """The attributes and source lines of a model's modules at its first recorded step: one report, "settings"."""

    kind: ClassVar[str] = "settings"

    model: str
    reports: Sequence[Report]


def is_spoiled(step: RecordedStep | StepEntry, non_finite: Iterable[NonFinite]) -> bool:
    """True for a step from a loss on that was not finite, whose figures say no more than that: NaN everywhere."""
    lost = (one.step for one in non_finite if one.cause == UNSEARCHED and one.model == step.model)
    return any(step.step >= first for first in lost)


BACKWARD = "backward of"
"""Begins the `what` of a value that a backward pass made of a finite gradient: "backward of sqrt (net.py:8)"."""
UNSEARCHED = "its origin was not traced; run with --first-bad"
"""The cause of a loss that is not finite in a run without a search."""
SKIPPED = "the program skipped the optimizer's step"
"""The cause of one whose gradients no optimizer's step took."""
