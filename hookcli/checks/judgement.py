"""Run the checks on what was measured, and make a report of their findings: causes before what follows from them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from hookcli.checks.base import ERROR, WARNING, Check
from hookcli.checks.lost import LostCheck, guard_of
from hookcli.checks.measurements import Measurements
from hookcli.errors import class_name
from hookcli.registry.pieces import texts
from hookcli.table import INFO, SEVERITIES, Finding, Reason, Report, Row, Skipped
from hookcli.table.columns.layouts import FINDINGS
from hookcli.table.meta import Meta, with_notes
from hookcli.table.names import is_within, owner_of

PROBE = "check"
_CRASHED = "the run crashed"


@dataclass(frozen=True)
class Judgement:
    """The findings of checks, what they could not judge and why, the ids of those that judged, and remarks."""

    findings: Sequence[Finding]
    skipped: Sequence[Skipped]
    checks: Sequence[str]
    notes: Sequence[str] = ()
    failed: int = 0
    """The number of checks of other distributions that failed, and so did not judge."""
    though: str = ""
    """Words on what comes near to a finding, for the line that says that the checks passed."""

    def report(self, model: str, meta: Meta, modules: int = 0, **judged: int) -> Report:
        """The report: a row per finding, and in `totals` how many checks were made on how many modules.

        `judged`, which are in `totals`, too: how many recorded `steps` were judged, of how many steps in all
        (`of_steps`), and how many of their `losses` are known, unless all are.
        """
        count = Counter(finding.severity for finding in self.findings)
        totals = {"errors": count[ERROR], "warnings": count[WARNING], "checks": len(self.checks), "modules": modules}
        totals |= judged | ({"infos": count[INFO]} if count[INFO] else {})
        totals |= {"failed_checks": self.failed} if self.failed else {}
        though = {"though": self.though} if self.though else {}
        meta = with_notes({**meta, "checks": list(self.checks)}, *self.notes)
        rows = []
        for finding in self.findings:
            values = {key: value for key, value in asdict(finding).items() if key not in ("file", "line")}
            rows.append(Row(values | {"source": finding.file and f"{finding.file}:{finding.line}"}))
        return Report(
            PROBE, model, FINDINGS, rows, meta, {**totals, **though}, self.skipped, self.findings, grouping="list"
        )


class SoFar:
    """Findings of earlier steps of a program, which some checks keep. A single run has none."""

    def add(self, check: Check, findings: list[Finding]) -> list[Finding]:
        """The findings of a check, with the earlier steps' findings that stay."""
        return findings

    def recall(self, check: Check) -> list[Finding] | None:
        """The findings of a check that this step does not let judge, as of the steps before; None if it never did."""
        return None

    def step_of(self, finding: Finding) -> int:
        """The step in which it was found: a later one can't be its cause."""
        return 0


_NOW = SoFar()


def judge(
    checks: Sequence[Check],
    measured: Measurements,
    *,
    values: bool = True,
    so_far: SoFar = _NOW,
) -> Judgement:
    """Run the checks on what was measured; `values` is False on the meta device.

    `so_far` adds what a check found in earlier steps of a program. After a crash nothing is known of the rest of the
    run, so a check that found nothing until then did not judge it. One of another distribution that fails does not
    judge either; what it found in earlier steps stays.
    """
    each = list[Judgement]()
    for check in checks:
        with guard_of(check) as guard:
            each.append(judge_by(check, measured, values, so_far))
        if guard.why:
            each.append(_not_judged(check, f"it failed: {guard.why}", so_far.recall(check) or (), failed=True))
    findings = causes_first([one for judged in each for one in judged.findings], checks, measured, so_far)
    skipped = dict.fromkeys(one for judged in each for one in judged.skipped)
    ids = [name for judged in each for name in judged.checks]
    notes = [note for judged in each for note in judged.notes]
    though = ", and ".join(judged.though for judged in each if judged.though)
    return Judgement(findings, list(skipped), ids, notes, sum(judged.failed for judged in each), though)


def judge_by(check: Check, measured: Measurements, values: bool = True, so_far: SoFar = _NOW) -> Judgement:
    """The judgement of one check, as of `judge`.

    Raises whatever the check raises, and TypeError unless it gives findings and skipped items whose places are texts.
    """
    reason = _why_lacking(check, measured, values)
    if reason and (recalled := so_far.recall(check)) is not None:
        return Judgement(recalled, (), [check.id])
    reason = reason or check.too_little(measured)
    new_findings, left_out = list[Finding](), list[Skipped]()
    for item in () if reason else check.judge(measured):
        if isinstance(item, Finding):
            new_findings.append(item)
        elif isinstance(item, Skipped):
            left_out.append(item)
        else:
            raise TypeError(f"judge() gave {class_name(item)}, not a Finding or Skipped")
        texts([item.fqn])
    of_check = [] if reason else so_far.add(check, new_findings)
    if of_check:
        return Judgement(of_check, left_out, [check.id], though=check.though(measured))
    if measured.crash and check.needs:
        reason = _CRASHED
    if reason:
        return _not_judged(check, reason, failed=isinstance(check, LostCheck))
    near = check.near(measured)
    return Judgement((), left_out, [check.id], [near] if near else [], though=check.though(measured))


def _not_judged(check: Check, reason: str, findings: Sequence[Finding] = (), *, failed: bool) -> Judgement:
    skipped = Skipped(f"{check.id} {check.name}", f"not judged: {reason}", kind=Reason.NOT_JUDGED)
    return Judgement(findings, [skipped], [], failed=int(failed))


def _why_lacking(check: Check, measured: Measurements, values: bool) -> str | None:
    if check.values and not values:
        return "it needs values, which the meta device does not have"
    if check.whole and measured.crash:
        return _CRASHED
    lacking = [name for name in check.needs if measured.lacks(name)]
    if lacking and (not check.or_else or any(map(measured.lacks, check.or_else))):
        return measured.missing.get(lacking[0], f"{lacking[0]} was not measured")
    return None


def with_advice(report: Report, change: Callable[[str], str]) -> Report:
    """The report with the advice of its findings changed, such as the commands that it names."""
    findings = [replace(one, hint=change(one.hint), remedy=change(one.remedy)) for one in report.findings]
    texts = [{key: change(row[key]) for key in ("hint", "remedy") if row.get(key)} for row in report.rows]
    rows = [replace(row, values={**row.values, **of_row}) for row, of_row in zip(report.rows, texts, strict=True)]
    return replace(report, rows=rows, findings=findings)


def fails(reports: Iterable[Report], severity: str) -> bool:
    """True if any finding is at least as bad as this severity."""
    return any(finding.fails(severity) for report in reports for finding in report.findings)


def causes_first(
    findings: Sequence[Finding], checks: Sequence[Check], measured: Measurements, so_far: SoFar = _NOW
) -> list[Finding]:
    """The findings, each after its cause, which it names; the most severe come first.

    A finding may be a cause of another if the other's check `follows` its check, directly or by way of checks between
    them, and data flows from the one place to the other. The nearest of them is the cause: gradients depend on every
    module, and what lies further away is a cause of that cause, or of none.
    """
    flow = _Flow(measured, {check.id: check.of_forward for check in checks if "grads" in check.needs})
    order = _order(checks)
    rank = {severity: number for number, severity in enumerate(SEVERITIES)}
    step_of = so_far.step_of
    ordered = sorted(
        findings, key=lambda f: (rank.get(f.severity, len(rank)), step_of(f), order.get(f.check, len(order)))
    )
    before = {check.id: _with_their_causes(check.follows, checks) for check in checks}
    nearest: dict[int, int | None] = {}
    for place, finding in enumerate(ordered):
        causes = [
            other
            for other, cause in enumerate(ordered)
            if cause.check in before.get(finding.check, ())
            and order[cause.check] < order[finding.check]  # in a circle of checks, one comes first
            and step_of(cause) <= step_of(finding)
            and flow.leads(cause, finding)
        ]
        distances = {other: flow.distance(ordered[other], finding) for other in reversed(causes)}
        nearest[place] = min(distances, key=distances.__getitem__, default=None)
    named = ((ordered[place], nearest[place]) for place in _listed(nearest))
    return [one if cause is None else replace(one, cause=ordered[cause].name) for one, cause in named]


def _listed(causes: Mapping[int, int | None]) -> list[int]:
    """The numbers, each after its cause, and right after each number those that follow from it."""
    follows: dict[int, list[int]] = defaultdict(list)
    for place, cause in causes.items():
        if cause is not None:
            follows[cause].append(place)

    def first_cause(place: int) -> int:
        cause = causes[place]
        return place if cause is None else first_cause(cause)

    def with_consequences(place: int) -> Iterator[int]:
        yield place
        for other in follows[place]:
            yield from with_consequences(other)

    firsts = dict.fromkeys(map(first_cause, causes))
    return [number for place in firsts for number in with_consequences(place)]


def _order(checks: Sequence[Check]) -> dict[str, int]:
    """The number of each check in an order in which checks come after those that find their causes."""
    by_id = {check.id: check for check in checks}
    ordered: dict[str, None] = {}

    def add(name: str, waiting: tuple[str, ...] = ()) -> None:
        if name in by_id and name not in waiting:  # checks of other distributions may follow each other in a circle
            for cause in by_id[name].follows:
                add(cause, (*waiting, name))
            ordered[name] = None

    for name in by_id:
        add(name)
    return {name: number for number, name in enumerate(ordered)}


def _with_their_causes(ids: Sequence[str], checks: Sequence[Check]) -> set[str]:
    """These ids, and the ids of all checks that they follow, directly or not."""
    follows = {check.id: check.follows for check in checks}
    causes: set[str] = set()
    waiting = [*ids]
    while waiting:
        if (cause := waiting.pop()) not in causes:
            causes.add(cause)
            waiting += follows.get(cause, ())
    return causes


class _Flow:
    """Tells whether data can flow from one place to another, judged by the order in which modules first ran.

    An output depends on whatever ran before it. A gradient also depends on what ran after it, so for findings of the
    checks in `backward` the order does not matter, unless they have these words (`Check.of_forward`). A module that
    never ran affects nothing but its own parts.
    """

    def __init__(self, measured: Measurements, backward: Mapping[str, str]) -> None:
        self._backward = backward
        rows = measured.inventory.rows if measured.inventory else ()
        calls = [row.fqn for row in rows if row["kind"] == "made"] or [r.fqn for r in rows if r["kind"] == "called"]
        self._ran = {fqn: number for number, fqn in enumerate(dict.fromkeys(calls))}
        self._idle = {row.fqn for row in rows if row["kind"] == "never_called"}

    def leads(self, cause: Finding, effect: Finding) -> bool:
        """True if data can get from the place of one finding to the place of the other."""
        a, b = cause.fqn, effect.fqn
        if is_within(a, b) or is_within(b, a) or a == b:
            return True
        if self._never_ran(a) or self._never_ran(b):
            return False
        before, after = self._place(a), self._place(b)
        words = self._backward.get(effect.check)
        any_order = words is not None and not (words and words in effect.message)
        return any_order or before is None or after is None or before < after

    def distance(self, cause: Finding, effect: Finding) -> float:
        """The number of calls between the first ones at two places; infinite if a place is unknown."""
        a, b = self._place(cause.fqn), self._place(effect.fqn)
        return math.inf if a is None or b is None else abs(a - b)

    def _place(self, fqn: str) -> int | None:
        """The number of the first call of a module, or of a parameter's or operator's module; None if unknown."""
        return self._ran.get(fqn, self._ran.get(owner_of(fqn)))

    def _never_ran(self, fqn: str) -> bool:
        return fqn in self._idle or owner_of(fqn) in self._idle
