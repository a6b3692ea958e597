"""What is to be judged, and by which runs: from settings to checks that are ready to judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hookcli.checks.base import Check
from hookcli.checks.expected import Expected, parse_expected
from hookcli.checks.selection import choose, chosen_by_name, find_check, parse_thresholds
from hookcli.diff.baseline import Baselines, read_baselines
from hookcli.diff.tolerance import Tolerance
from hookcli.errors import UsageError


@dataclass(frozen=True)
class CheckPlan:
    """What is judged, and by which runs."""

    checks: Sequence[Check]
    backward: bool = True
    repeat: int = 1
    expected: Sequence[Expected] = ()
    against: Baselines | None = None
    tolerance: Tolerance = Tolerance()
    keep: bool = False

    @property
    def needs(self) -> set[str]:
        """The fields of Measurements that the checks read, or that a baseline holds."""
        kept = {"settings", "shapes", "activations", *(["grads"] if self.backward else [])}
        return {name for check in self.checks for name in check.needs} | (kept if self.keep or self.against else set())


def make_plan(
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    thresholds: Mapping[str, float | str] | None = None,
    expect_output: str | Sequence[str] = (),
    backward: bool = True,
    repeat: int = 1,
    split_batch: bool = False,
    against: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    keep: bool = False,
    values: bool = True,
    typed: bool = False,
) -> CheckPlan:
    """The plan that these settings describe. Raises UsageError for what there isn't, or what contradicts itself.

    `against` is a file of baselines; with `keep` all is measured that a baseline holds; without `values` the model runs
    on the meta device. Errors speak of options where the settings were `typed`.
    """
    given = [expect_output] if isinstance(expect_output, str) else expect_output
    expected = [parse_expected(text) for text in given]
    limits = parse_thresholds(thresholds or {}, "--threshold " if typed else "thresholds: ")
    asked = {"HK021": bool(expected), "HK025": repeat > 1, "HK026": split_batch, "HK027": against is not None}
    checks = choose(select, ignore, limits, [name for name, wanted in asked.items() if wanted], typed=typed)
    require_judgeable(select, expected=bool(expected), against=bool(against), backward=backward, values=values)
    again = any("again" in check.needs for check in checks)
    if not backward and "max-activation-memory" in {check.name for check in checks}:
        raise UsageError("--max-activation-memory is what is kept for backward: leave --no-backward out")
    runs = max(repeat, 2) if again else 1
    baselines = read_baselines(against) if against else None
    return CheckPlan(checks, backward, runs, expected, baselines, Tolerance(rtol, atol), keep)


def require_judgeable(select: Sequence[str], *, expected: bool, against: bool, backward: bool, values: bool) -> None:
    """Raises UsageError for a check that is selected by name and lacks what it reads.

    Of what was asked for and not judged a person, or a CI job, would believe that it is well.
    """
    for check in map(find_check, sorted(chosen_by_name(select))):
        todo = _lacking(check, expected, against, backward, values)
        if todo:
            raise UsageError(f"{check.id} ({check.name}) is selected and could not judge: {', and '.join(todo)}")


def _lacking(check: type[Check], expected: bool, against: bool, backward: bool, values: bool) -> list[str]:
    """What to do about it."""
    lacks = [
        (not expected, "expected", f"give {check.asked_by}"),
        (not against, "baseline", f"give {check.asked_by}"),
        (not backward, "grads", "leave --no-backward out"),
    ]
    todo = [said for lacking, fact, said in lacks if lacking and fact in check.needs]
    return todo + (["leave --meta out"] if check.values and not values else [])
