"""The order of findings: by declared causes and by data flow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hookcli import check
from hookcli.checks.base import Check
from hookcli.checks.judgement import causes_first
from hookcli.checks.measurements import Measurements
from hookcli.checks.selection import known_checks
from hookcli.table import Finding, Report, Row

_ROOM = 67  # of 80 columns, after an id and "Else: "


def made(name: str, *follows: str, needs: tuple[str, ...] = ()) -> Any:
    values: dict[str, Any] = {"id": name, "name": name, "follows": follows, "needs": needs, "judge": lambda *_: ()}
    return type(name, (Check,), {**values, "means": "", "advice": ""})()


CHECKS = (
    made("ACT"),
    made("SPREADS", "ACT"),
    made("GRAD", "SPREADS", needs=("grads",)),
    made("UNRUN"),
    made("LOST", "UNRUN"),
)
CALLED = [Row({"kind": "called", "fqn": fqn}) for fqn in ("", "a", "b", "c")]
INVENTORY = Report("inventory", "m", (), [*CALLED, Row({"kind": "never_called", "fqn": "idle"})])


def order(*found: tuple[str, str, str]) -> list[tuple[str, str]]:
    findings = [Finding(check, severity, fqn, "") for check, severity, fqn in found]
    ordered = causes_first(findings, CHECKS, Measurements(inventory=INVENTORY))
    return [(finding.name, finding.cause) for finding in ordered]


def test_outputs_follow_from_what_ran_before_and_gradients_from_anything() -> None:
    assert order(("SPREADS", "error", "c.weight"), ("ACT", "warning", "b")) == [
        ("ACT b", ""),
        ("SPREADS c.weight", "ACT b"),
    ]
    assert order(("SPREADS", "error", "a"), ("ACT", "warning", "b")) == [("SPREADS a", ""), ("ACT b", "")]
    assert order(("GRAD", "error", "a"), ("ACT", "warning", "b")) == [("ACT b", ""), ("GRAD a", "ACT b")]


def test_the_nearest_of_several_causes_is_named() -> None:
    """By the way that data takes; the severity, by which findings are listed, says nothing on it."""
    forward = order(("SPREADS", "error", "c"), ("ACT", "error", "b"), ("ACT", "warning", "a"))
    assert forward == [("ACT b", ""), ("SPREADS c", "ACT b"), ("ACT a", "")]
    backward = order(("GRAD", "error", "a.weight"), ("ACT", "error", "b"), ("ACT", "warning", "c"))
    assert backward == [("ACT b", ""), ("GRAD a.weight", "ACT b"), ("ACT c", "")]


def test_of_several_causes_only_the_nearest_counts() -> None:
    """So that a gradient does not wait for findings in all other modules, and each stands below its own cause."""
    found = order(
        *(("ACT", "error", name) for name in "abc"),
        *(("GRAD", "error", f"{name}.weight") for name in "abc"),
        ("ACT", "warning", ""),
    )
    assert found == [
        *(pair for name in "abc" for pair in ((f"ACT {name}", ""), (f"GRAD {name}.weight", f"ACT {name}"))),
        ("ACT", ""),
    ]
    chain = order(("GRAD", "error", "c.weight"), ("ACT", "error", "a"), ("SPREADS", "warning", "b"))
    assert chain == [("ACT a", ""), ("SPREADS b", "ACT a"), ("GRAD c.weight", "SPREADS b")]


def test_what_follows_stands_after_its_cause_before_what_is_less_severe() -> None:
    found = order(("ACT", "error", "b"), ("UNRUN", "warning", "idle"), ("SPREADS", "info", "c"))
    assert found == [("ACT b", ""), ("SPREADS c", "ACT b"), ("UNRUN idle", "")]


def test_a_part_that_never_ran_is_the_cause_of_nothing_elsewhere() -> None:
    found = order(("LOST", "error", "a"), ("LOST", "error", "idle.weight"), ("UNRUN", "warning", "idle"))
    assert found == [("LOST a", ""), ("UNRUN idle", ""), ("LOST idle.weight", "UNRUN idle")]


def test_what_is_not_finite_is_followed_from_the_input_to_the_gradients() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    x = torch.randn(8, 4)
    x[0, 0] = torch.nan
    found = check(Net(), x, select=["HK002", "HK003", "HK004"]).findings
    assert [(f.check, f.cause) for f in found] == [("HK002", ""), ("HK003", "HK002"), ("HK004", "HK003 first")]


def test_every_remedy_fits_a_line_and_every_cause_is_a_check() -> None:
    checks = known_checks()
    assert [c.id for c in checks if len(c.advice.replace(" MODEL", "")) > _ROOM] == []
    assert {name for c in checks for name in c.follows} <= {c.id for c in checks}


def test_a_gradient_that_is_zero_for_what_came_in_follows_from_what_ran_before() -> None:
    """An input of zeros: the first weight's gradient is zero, and later units may be dead, which is not its cause."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.relu, self.last = nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.last(self.relu(self.first(x)))
            return result

    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        net.first.bias[:15] = -1.0
        net.first.bias[15] = 1.0
    causes = {one.check: (one.fqn, one.cause) for one in check(net, torch.zeros(16, 8)).findings}
    assert causes["HK010"] == ("relu", "") and causes["HK009"] == ("first", "")
