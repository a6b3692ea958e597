"""The line on a rule that fired, how it reads, and what is said of a run in which some fired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from hookcli.record.file.record_lines import PartLine

if TYPE_CHECKING:
    from hookcli.record.file.reading import Record

ENDS = "it ends the program"


@dataclass(frozen=True, slots=True)
class RuleFired(PartLine):
    """A rule of `run --rule` fired in a training step of a model.

    `terms` are the figures and windows that it compares, as they were typed, and `values` theirs in that step, as far
    as known. `times`: how often it has fired for this model so far. Each of the first times is a line, then each time
    that doubles their number, and the last. `did` says what `--then` had done at the first time.
    """

    kind: ClassVar[str] = "rule"

    rule: str
    terms: Sequence[str]
    values: Sequence[float]
    times: int = 1
    did: str = ""

    def to_dict(self, packed: str | None = None) -> dict[str, Any]:
        """The line as strict JSON, with its rule first."""
        return {"line": self.kind, "rule": self.rule} | PartLine.to_dict(self, packed)

    @property
    def said(self) -> str:
        return rule_line(self)

    @property
    def is_news(self) -> bool:
        return self.times == 1

    @property
    def ends_program(self) -> bool:
        return self.did.endswith(ENDS)

    def of_rank(self, rank: int) -> Self:
        return replace(self, model=f"{self.model}, rank {rank}")


LINES = (RuleFired,)


def rule_line(fired: RuleFired, times: str = "") -> str:
    """rule spike fired at step 120 (Net): grad_norm 54.21, median(50) 2.263"""
    seen = ", ".join(f"{term} {value:.4g}" for term, value in zip(fired.terms, fired.values, strict=False))
    where = f"at step {fired.step:,} ({fired.model}): {seen}"
    return f"rule {fired.rule} fired {times}{where}" + (f"; {fired.did}" if fired.did else "")


def rule_summaries(fired: Sequence[RuleFired]) -> list[str]:
    """A line per rule that fired: rule spike fired 3 times, first at step 120 (Net): ...; last at step 140."""
    lines = []
    for name in dict.fromkeys(one.rule for one in fired):
        own = sorted((one for one in fired if one.rule == name), key=lambda one: one.step)
        times, of = sum({one.model: one.times for one in own}.values()), f" ({own[-1].model})"
        more = f"; last at step {own[-1].step:,}{of * (own[-1].model != own[0].model)}" if times > 1 else ""
        lines.append(rule_line(own[0], f"{times:,} times, first " if times > 1 else "") + more)
    return lines


def summaries(record: Record) -> list[str]:
    """The lines that stand first in what is said of a record."""
    return rule_summaries(record.of(RuleFired))


def fault(record: Record, brief: bool) -> str:
    """The first rule that fired, in brief if the summary has `brief` more; "" if none has."""
    lines = summaries(record)
    return "a rule fired" if lines and brief else "".join(lines[:1])
