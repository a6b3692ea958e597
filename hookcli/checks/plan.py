"""The plan of a check: settings become checks that are ready to judge, and the runs that they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from hookcli.checks.base import Check
from hookcli.checks.expected import Expected, parse_expected
from hookcli.checks.selection import choose, chosen_by_name, find_check, parse_thresholds
from hookcli.diff.baseline import Baselines, read_baselines
from hookcli.diff.tolerance import Tolerance
from hookcli.errors import UsageError
from hookcli.hooks.option_values import OPS


@dataclass(frozen=True)
class CheckPlan:
    """The checks to run and the runs that they need. `ops`: also judge operators."""

    checks: Sequence[Check]
    backward: bool = True
    repeat: int = 1
    expected: Sequence[Expected] = ()
    against: Baselines | None = None
    tolerance: Tolerance = Tolerance()
    keep: bool = False
    ops: str | None = None

    @property
    def needs(self) -> set[str]:
        """The fields of Measurements that the checks read, or that a baseline holds."""
        kept = {"settings", "shapes", "activations", *(["grads"] if self.backward else [])}
        return {name for check in self.checks for name in check.needs} | (kept if self.keep or self.against else set())


class CheckSettings(TypedDict, total=False):
    """Settings of the checks from `hookcli.check` or the command line; each has a default."""

    select: str | Sequence[str]
    ignore: str | Sequence[str]
    thresholds: Mapping[str, float | str] | None
    expect_output: str | Sequence[str]
    backward: bool
    repeat: int
    split_batch: bool
    against: str | None
    rtol: float | None
    atol: float | None
    ops: str | None


def make_plan(
    *, keep: bool = False, values: bool = True, typed: bool = False, **settings: Unpack[CheckSettings]
) -> CheckPlan:
    """Make a plan of the settings. Raises UsageError for unknown names and for settings that contradict each other.

    With `keep` everything is measured that a baseline holds; without `values` the model runs on the meta device. Errors
    speak of options where the settings were `typed`.
    """
    select, ignore = _listed(settings.get("select")), _listed(settings.get("ignore"))
    backward, repeat, against = settings.get("backward", True), settings.get("repeat", 1), settings.get("against")
    expected = [parse_expected(text) for text in _listed(settings.get("expect_output"))]
    limits = parse_thresholds(settings.get("thresholds") or {}, "--threshold " if typed else "thresholds: ")
    asked = {"HK021": expected, "HK025": repeat > 1, "HK026": settings.get("split_batch"), "HK027": against is not None}
    checks = choose(select, ignore, limits, [name for name, wanted in asked.items() if wanted], typed=typed)
    require_judgeable(settings, values)
    if not backward and "max-activation-memory" in {check.name for check in checks}:
        limit = "max-activation-memory"
        raise UsageError(f"--{limit} limits the memory saved for backward: remove --no-backward", option=limit)
    if (ops := settings.get("ops")) not in (None, OPS[0]):
        raise UsageError(f"{'--ops' if typed else 'ops'} {ops}: checks judge PyTorch's functions; give {OPS[0]}")
    runs = max(repeat, 2) if any("again" in check.needs for check in checks) else 1
    baselines = read_baselines(against) if against else None
    tolerance = Tolerance(settings.get("rtol"), settings.get("atol"))
    return CheckPlan(checks, backward, runs, expected, baselines, tolerance, keep, ops)


def _listed(words: str | Sequence[str] | None) -> Sequence[str]:
    return [words] if isinstance(words, str) else words or ()


def require_judgeable(settings: Mapping[str, Any], values: bool) -> None:
    """Raises UsageError if a check that is selected by name lacks what it reads: people would take it for passed."""
    for check in map(find_check, sorted(chosen_by_name(_listed(settings.get("select"))))):
        sources = (
            ("expected", settings.get("expect_output"), f"give {check.asked_by}"),
            ("baseline", settings.get("against"), f"give {check.asked_by}"),
            ("grads", settings.get("backward", True), "remove --no-backward"),
        )
        todo = [advice for need, setting, advice in sources if need in check.needs and not setting]
        todo += ["remove --meta"] if check.values and not values else []
        if todo:
            raise UsageError(f"{check.id} ({check.name}) is selected but can't judge: {' and '.join(todo)}")
