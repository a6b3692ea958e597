"""What a check is: it reads what was measured of a run, plain numbers all, and says what it found."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from hookcli.checks.expected import Expected
from hookcli.diff.baseline import Baseline
from hookcli.diff.tolerance import Tolerance
from hookcli.report import INFO, SEVERITIES, Finding, Report, Skipped

__all__ = ["ERROR", "INFO", "WARNING", "Check", "Comparison", "Evaluation", "Facts", "Threshold"]

ERROR, WARNING = SEVERITIES


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far the outputs of two runs are apart: the largest difference, relative to the largest output.

    `fqn` is the first module whose outputs differ, and `excuse` why that may be as it should be; `failed` says why the
    second run gave no output to compare.
    """

    value: float
    fqn: str = ""
    failed: str = ""
    excuse: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was seen of forward passes in eval mode: the modules that drew random numbers, in order.

    `again` holds a second pass on the same batch, with the same random numbers, against the first; None where nothing
    called for one: other batches give the first item the same output, and no buffer changed.
    """

    drawing: Sequence[str] = ()
    again: Comparison | None = None


@dataclass(frozen=True)
class Facts:
    """All that was measured of one model, for checks to read.

    `health` is the report of probes/health.py; `again` has one more of it per repetition. What was not measured is
    None, and `missing` says why, by the field's name. `crash` is what the model failed with; the reports then hold
    what was seen until then. `eval_crash` is the same of a model that got through its run, and fails in eval mode.
    """

    health: Report | None = None
    activations: Report | None = None
    grads: Report | None = None
    shapes: Report | None = None
    settings: Report | None = None
    again: tuple[Report, ...] | None = None
    evaluation: Evaluation | None = None
    companions: Comparison | None = None
    halves: Comparison | None = None
    expected: Sequence[Expected] | None = None
    baseline: Baseline | None = None
    tolerance: Tolerance = Tolerance()
    crash: str | None = None
    eval_crash: str | None = None
    dtype: str = "float32"
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Threshold:
    """The figure that a check compares with: what it is, its default and its range.

    Without a default the check judges only where a threshold was given. `unit` tells how people write it: "" a plain
    number, "count" with an SI prefix (25M), "bytes" with a binary one (512MiB).
    """

    means: str
    default: float | None
    low: float = 0.0
    high: float = math.inf
    unit: str = ""


class Check(ABC):
    """Judges one thing. The class's docstring is what `hookcli explain` says of it.

    `means` tells on one line what a finding usually comes from, `advice` what to try. `needs` names the fields of Facts
    without which it can't judge; with `whole` it does not judge a run that crashed, since what is absent there may be
    absent for that reason; without `values` it judges a run on the meta device too, which has shapes alone. `asked_by`
    is the option without which it is not run. `follows` has the ids of checks that find causes of what this one finds:
    of one severity, their findings come first.
    """

    id: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[str] = WARNING
    means: ClassVar[str]
    advice: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    whole: ClassVar[bool] = False
    values: ClassVar[bool] = True
    asked_by: ClassVar[str | None] = None
    follows: ClassVar[tuple[str, ...]] = ()
    threshold: ClassVar[Threshold | None] = None

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit if limit is not None or self.threshold is None else self.threshold.default

    @abstractmethod
    def judge(self, facts: Facts) -> Iterable[Finding | Skipped]:
        """What is wrong, and what could not be told. Each field named in `needs` is there."""

    def finding(self, fqn: str, message: str, value: float | None = None) -> Finding:
        """A finding of this check at a place."""
        return Finding(self.id, self.severity, fqn, message, value, self.limit, hint=f"{self.means}; {self.advice}")

    @classmethod
    def explanation(cls) -> str:
        """The class's docstring, a paragraph a line."""
        paragraphs = inspect.cleandoc(cls.__doc__ or "").split("\n\n")
        return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
