"""The measurements of a run, all plain numbers, the parts that checks read, and the outputs that are expected."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

from hookcli.diff.baseline import Baseline
from hookcli.diff.tolerance import Tolerance
from hookcli.errors import ModelError, UsageError, shortened
from hookcli.table import Report, Row
from hookcli.table.compilation import Compilation
from hookcli.table.losses import LossCourse
from hookcli.table.training import TrainingCourse

_SPEC = re.compile(
    r"(?:(?P<path>[^=]+)=)?(?P<shape>scalar|(?:\d{1,30}|\*)(?:[x,](?:\d{1,30}|\*))*)(?::(?P<dtype>\w+))?"
)


@dataclass(frozen=True, slots=True)
class Expected:
    """One tensor of the output: its sizes (None: any), and its dtype and path, if given."""

    sizes: tuple[int | None, ...]
    dtype: str | None = None
    path: str | None = None

    def __str__(self) -> str:
        sizes = "x".join("*" if size is None else str(size) for size in self.sizes) or "scalar"
        return (f"{self.path}=" if self.path else "") + sizes + (f":{self.dtype}" if self.dtype else "")

    def takes(self, shape: Sequence[int], dtype: str) -> bool:
        """True for a tensor of the expected shape and dtype."""
        sizes = tuple(size if wanted is None else wanted for wanted, size in zip(self.sizes, shape, strict=False))
        return len(shape) == len(self.sizes) and sizes == tuple(shape) and self.dtype in (None, dtype)


def parse_expected(text: str, option: str = "--expect-output") -> Expected:
    """Parse `*x1000:float32` or `out=*x21x224x224`; a UsageError begins with the `option` that the text came from."""
    match = _SPEC.fullmatch(text.replace(" ", ""))
    if not match:
        form = "a shape such as *x1000 (* is any size), optionally with a dtype and a path: out=*x21x224x224:float32"
        raise UsageError(f"{option} {shortened(text)!r}: give {form}".lstrip())
    parts = () if match["shape"] == "scalar" else re.split("[x,]", match["shape"])
    return Expected(tuple(None if part == "*" else int(part) for part in parts), match["dtype"], match["path"])


@dataclass(frozen=True, slots=True)
class Comparison:
    """The distance between the outputs of two runs: the largest difference, relative to the largest output.

    `fqn` is the first module whose outputs differ, `reason` why they do, `excuse` why that may be right, and `cause`
    names the reason ("statistics" of the batch, "padding" of its items, an "observer", "expected" of a sequence or of
    dynamic quantization, "nodes" of a graph, a "set" of items; "" for others). `failed` says why the second run gave no
    output to compare. `item` is the one whose outputs were compared, and `batch` the number of the batch, of several:
    "3 of 5".
    """

    value: float
    fqn: str = ""
    failed: str = ""
    excuse: str = ""
    cause: str = ""
    reason: str = ""
    item: str = "first"
    batch: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Forward passes in eval mode: the modules that drew random numbers, in order, and a repeated pass.

    `again` compares a second pass on the same batch, with the same random numbers, with the first. It is None if none
    was needed: other batches gave the first item the same output, and no buffer changed. `batch` is the number of the
    batch, of several: "3 of 5".
    """

    drawing: Sequence[str] = ()
    again: Comparison | None = None
    batch: str = ""


@dataclass(frozen=True, slots=True)
class EvalOutputs:
    """The model's output in eval mode without gradients, or with them (`gradients`) if the model fails otherwise, and
    then with gradients; of so many `batches`, in order, up to the first with a value that is not finite.

    If there is one, `activations` and `inventory` are the rows of another such pass, under probes; else they are empty.
    `with_alone`: the values are finite without gradients. `fused`: they are finite where attention does not take
    PyTorch's fused path. `unseen`: no tensor was found in an output.
    """

    activations: Sequence[Row] = ()
    inventory: Sequence[Row] = ()
    fused: bool = False
    gradients: bool = False
    with_alone: bool = False
    batches: int = 1
    unseen: bool = False


@dataclass(frozen=True, slots=True)
class HiddenValues:
    """Operators and modules of a pass with gradients in eval mode, if values there are not finite that the output does
    not show: the rows of what they return, and the first parameter whose `gradient` is not finite, "" for none.
    """

    activations: Sequence[Row] = ()
    inventory: Sequence[Row] = ()
    gradient: str = ""


@dataclass(frozen=True)
class Measurements:
    """Everything that was measured of one model, for checks to read.

    A field that was not measured is None, and `missing` says why, by the field's name. A check names what it needs, and
    is called only where all of that was measured; it sees the measurements as one of the protocols below, whose fields
    are there. Any other name that it needs names a probe, or a capability that measures for its checks, whose
    report is `probes[name]`. `again` holds one more `inventory` per repetition. `used_by_loss`: for each parameter
    without a gradient, how the loss is computed from it: by "tensors" alone, with "numbers" of Python or NumPy on the
    way, or "" if it is not. `output_grads`: gradients of modules' outputs, if a parameter's is zero everywhere.
    `called_in_eval`: the modules that eval mode calls, and training mode does not; `called_by_chance`: those that the
    run did not call, and further forwards with other random numbers do. `crash` is the error of a model that
    failed; the reports then end where it failed. `eval_crash` is the error of a model that passed its run and failed in
    eval mode, `compile_crash` of one that failed under torch.compile. `every_loss` has the losses of a recorded run by
    step, as far as they are known, and `lines` those that parts of capabilities wrote of the model, by kind. `training`
    has the recorded steps of a running program up to this one, whose number is `step`, and whose loss is `loss`, if it
    is known.
    """

    inventory: Report | None = None
    activations: Report | None = None
    grads: Report | None = None
    used_by_loss: Mapping[str, str] | None = None
    output_grads: Report | None = None
    called_in_eval: Collection[str] | None = None
    called_by_chance: Collection[str] = ()
    shapes: Report | None = None
    settings: Report | None = None
    again: Sequence[Report] | None = None
    evaluation: Evaluation | None = None
    eval_outputs: EvalOutputs | None = None
    hidden: HiddenValues | None = None
    companions: Comparison | None = None
    halves: Comparison | None = None
    expected: Sequence[Expected] | None = None
    baseline: Baseline | None = None
    losses: LossCourse | None = None
    every_loss: Mapping[int, float] = field(default_factory=dict)
    lines: Mapping[str, Sequence[object]] = field(default_factory=dict)
    training: TrainingCourse | None = None
    step: int | None = None
    loss: float | None = None
    compilation: Compilation | None = None
    record: object | None = None
    tolerance: Tolerance = Tolerance()
    crash: ModelError | None = None
    eval_crash: ModelError | None = None
    compile_crash: ModelError | None = None
    dtype: str = "float32"
    missing: Mapping[str, str] = field(default_factory=dict)
    probes: Mapping[str, Report] = field(default_factory=dict)
    """The reports of any other probes and capabilities that checks need, by name."""

    def lacks(self, name: str) -> bool:
        """True if this field, or else the report of a probe of this name, was not measured."""
        return name not in self.probes and (name not in FIELDS or getattr(self, name) is None)


FIELDS = frozenset(field.name for field in fields(Measurements))


class ReadsProbes(Protocol):
    """Measurements for a check that needs reports of probes without their own field."""

    probes: Mapping[str, Report]


class ReadsLosses(Protocol):
    """Measurements for a check that needs the losses of a recorded run."""

    losses: LossCourse


class ReadsLines(Protocol):
    """Measurements for a check that needs the lines that a part of a capability wrote into a recorded run."""

    lines: Mapping[str, Sequence[object]]
    every_loss: Mapping[int, float]
    losses: LossCourse


class ReadsTraining(Protocol):
    """Measurements for a check that needs the recorded steps of a training."""

    training: TrainingCourse


class ReadsRecord(Protocol):
    """Measurements for a check that needs the record of a whole run (`hookcli.record.file.reading.Record`)."""

    record: object


class ReadsInventory(Protocol):
    """Measurements for a check that needs the inventory; of a recorded step also what came of those before."""

    inventory: Report
    training: TrainingCourse | None
    step: int | None


class ReadsUnits(ReadsInventory, Protocol):
    """Measurements for a check that needs the inventory, and takes activations where they were measured."""

    activations: Report | None


class ReadsActivations(Protocol):
    """Measurements for a check that needs activations."""

    activations: Report
    dtype: str


class ReadsGrads(Protocol):
    """Measurements for a check that needs gradients."""

    grads: Report
    dtype: str
    training: TrainingCourse | None


class ReadsWeightsAndGrads(ReadsInventory, ReadsGrads, Protocol):
    """Measurements for a check that needs gradients, and the inventory of their parameters and modules."""


class ReadsValues(ReadsActivations, ReadsGrads, Protocol):
    """Measurements for a check that needs activations and gradients."""
