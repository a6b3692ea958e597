"""The interface of a check: it reads the measurements of a run, all plain numbers, and returns findings."""

from __future__ import annotations

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hookcli.checks.measurements import Comparison
from hookcli.table import SEVERITIES, Finding, Report, Row, Skipped
from hookcli.table.formatting import number

ERROR, WARNING = SEVERITIES
IN_EVAL = "in eval mode"
"""The beginning of a message about the runs in eval mode."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The limit of a check: its meaning, its default and its range.

    A check without a default judges only if a threshold was given. `unit` says how people write it: "" for a plain
    number, "count" for one with an SI prefix (25M), "bytes" for one with a binary prefix (512MiB).
    """

    means: str
    default: float | None
    low: float = 0.0
    high: float = math.inf
    unit: str = ""


class Check(ABC):
    """The interface of a check. `hookcli explain` prints the docstring of its class.

    `means` names the usual cause of a finding on one line, `advice` what to try: for any weights, trained or not,
    and with MODEL or SCRIPT in the commands that it names, for which `hookcli check` puts what was typed. `needs`
    lists the fields of Measurements that the check reads, and probes whose reports it reads from `probes`; `takes`
    those that it also reads if they were measured, `reads` the kinds of lines that parts of capabilities write into a
    recorded run, on the whole of which it then judges, `or_else` those that serve where one of `needs` was not. A check
    that is `whole` does not judge a run that crashed, since whatever is absent there may be absent for that reason.
    A check without `values` also judges a run on the meta device, which has shapes only. `asked_by` is the option
    that the check runs with, and not without. `follows` lists the ids of checks that find causes of this one's
    findings, which are then listed first (`hookcli.checks.judgement`); of a check on gradients, a finding whose
    message has the words `of_forward` can follow from what ran before its place alone. `over_steps` says which of the
    findings in a program's recorded steps is reported: the "first" or the "largest"; with "" the last step's. `look` is
    the command that shows more of a finding, without the model: "grads --of outputs".
    """

    id: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[str] = WARNING
    means: ClassVar[str]
    advice: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    takes: ClassVar[tuple[str, ...]] = ()
    or_else: ClassVar[tuple[str, ...]] = ()
    whole: ClassVar[bool] = False
    values: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ()
    asked_by: ClassVar[str | None] = None
    follows: ClassVar[tuple[str, ...]] = ()
    of_forward: ClassVar[str] = ""
    over_steps: ClassVar[str] = ""
    look: ClassVar[str] = ""
    threshold: ClassVar[Threshold | None] = None

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit if limit is not None or self.threshold is None else self.threshold.default

    @abstractmethod
    def judge(self, measured: Any) -> Iterable[Finding | Skipped]:
        """The faults found, and what could not be judged.

        `measured` are the Measurements, with every field named in `needs`. A check annotates it with a protocol of the
        fields that it reads (`ReadsActivations` and the like), so that mypy finds one that it does not need.
        """

    def too_little(self, measured: Any) -> str:
        """The reason why too little was measured to judge by, though everything in `needs` was; "" if it is enough."""
        return ""

    def near(self, measured: Any) -> str:
        """A remark on what comes near to a finding, where there is none; "" if nothing does."""
        return ""

    def though(self, measured: Any) -> str:
        """The same in a few words, for the line that says that the checks passed; "" if nothing comes near."""
        return ""

    def finding(self, fqn: str, message: str, value: float | None = None) -> Finding:
        """A finding of this check at a module or parameter."""
        hint = f"{self.means}; {self.advice}"
        return Finding(self.id, self.severity, fqn, message, value, self.limit, hint, remedy=self.advice)

    def difference(self, comparison: Comparison, limit: float, change: str) -> Iterator[Finding]:
        """A finding if two runs differ by more than the limit, or if the second of them failed."""
        first = first_in(comparison.batch)
        if comparison.failed:
            yield self.finding(comparison.fqn, comparison.failed + first)
        elif not comparison.value <= limit:  # also true of NaN
            share = f"{number(100 * comparison.value)}%"
            by_how_much = "NaN" if math.isnan(comparison.value) else f"difference: {share} of the largest output"
            message = f"{change} ({by_how_much}){first}"
            yield replace(self.finding(comparison.fqn, message, comparison.value), threshold=limit)

    @classmethod
    def explanation(cls) -> str:
        """The docstring of the class, one line per paragraph, and per item of a list, which begins with a dash."""
        paragraphs = inspect.cleandoc(cls.__doc__ or "").split("\n\n")
        return "\n\n".join(re.sub(r"\n(?!- ) *", " ", paragraph) for paragraph in paragraphs)


class LinesCheck(Check):
    """The base of a check that judges a whole recorded run by lines of capabilities, those that it `reads`."""

    needs = ("losses",)
    asked_by = "hookcli run --check"


def first_in(batch: str) -> str:
    """The part of a message that names the first batch with a fault, of several; "" for one batch."""
    return f" (first in batch {batch})" if batch else ""


def of_kind(inventory: Report, kind: str) -> list[Row]:
    """The rows of an inventory that are of this kind."""
    return [row for row in inventory.rows if row["kind"] == kind]


FEW = 3
"""The number of names that a message has room for."""


def listed_within(owner: str, names: Sequence[str]) -> str:
    """The names of parameters within their module, or how many there are."""
    short = names_within(owner, names)
    return ", ".join(short) if len(short) <= FEW else f"any of {len(short)} parameters"


def names_within(owner: str, names: Sequence[str]) -> list[str]:
    """The names of parameters without the name of their module."""
    return [name.removeprefix(f"{owner}.") for name in names]
