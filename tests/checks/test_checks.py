"""Each check on a model that has what it looks for, and on one that nearly has it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from checks.broken import Case, Counts, Dropped, Fn, Noisy, Parts, biased, found, frozen, tower, wide
from support import untouched, usual_checks
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm

from hookcli import check
from hookcli.checks.selection import known_checks
from hookcli.registry.capability import capabilities


class Amplify(nn.Module):
    """Hands on what it gets, and back a multiple of it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.factor - 1) * (x - x.detach())


def filled(value: float, model: nn.Module | None = None) -> nn.Module:
    model = model or Fn()
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = value
    return model


def without_extra(model: Parts, *names: str) -> Parts:
    for name in names:
        delattr(model, name)
    return model


def masked(factor: float) -> nn.Module:
    return Fn(lambda y: y * factor + 1)


def hooked(own: bool) -> nn.Module:
    model = Fn()
    if own:
        model.layer = spectral_norm(parametrizations.weight_norm(nn.Linear(4, 4), "bias", 0))
        model.register_state_dict_pre_hook(lambda *a: None)
        model.layer.register_forward_hook(lambda *a: None).remove()
    else:
        model.layer.register_forward_hook(lambda *a: None)
    return model


class Reshapes(nn.Module):
    """A batch size that is written down."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.layer, self.batch = nn.Linear(4, 4), batch

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).view(self.batch, 2, 2)


def with_nan() -> Tensor:
    return torch.randn(16, 4).index_fill_(0, torch.tensor([3]), math.nan)


class Keeps(nn.Module):
    """Calls what is in a plain list."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(4, 4), layers

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](self.first(x))


def in_eval_mode(frozen: bool) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].eval().requires_grad_(not frozen)
    return model


def norm(tracked: bool) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=tracked), nn.Linear(4, 2))


def ending(last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), last)


CROSS_ENTROPY = {"loss": "cross-entropy"}


def normed(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), norm, nn.ReLU(), nn.Linear(4, 2))


def plain(matrix: Tensor) -> nn.Module:
    model = Fn()
    model.matrix, model.after = matrix, lambda y: y @ model.matrix
    return model


BROKEN = [
    Case("HK001", lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(4, 2)), Fn, "1"),
    Case("HK002", Fn, Fn, "", 4, inputs=with_nan, near_inputs=lambda: torch.full((2, 4), 3e38)),
    Case("HK003", lambda: nn.Sequential(Fn(torch.log), Fn()), lambda: nn.Sequential(Fn(torch.relu), Fn()), "0"),
    Case("HK004", lambda: Fn(lambda y: (y * 0).sqrt()), lambda: Fn(lambda y: (y * 0 + 1e-6).sqrt()), "layer.bias"),
    Case("HK005", lambda: filled(math.inf), lambda: filled(3e38), "layer.weight", 1),
    Case("HK006", lambda: Parts(call_drop=True), lambda: Parts(call_drop=True, functional=True), "extra", 20),
    Case("HK007", lambda: Parts(use_extra=True), lambda: Parts(use_extra=True, call_drop=True), "drop", 1),
    Case("HK008", lambda: Parts(), lambda: Parts(functional=True), "extra", 2),
    Case("HK009", lambda: masked(0.0), lambda: masked(1e-30), "layer", 2),
    Case("HK010", lambda: biased(nn.ReLU(), 7), lambda: biased(nn.ReLU(), 5), "1", 7 / 8),
    Case("HK011", lambda: biased(nn.Tanh(), 6), lambda: biased(nn.Tanh(), 5), "1", 6 / 8),
    Case("HK012", lambda: tower(nn.Sigmoid(), 10), lambda: tower(nn.Sigmoid(), 3), "10.weight", inputs=wide),
    Case("HK013", lambda: tower(Amplify(4), 10, 1), lambda: tower(Amplify(2), 10, 1), "", inputs=wide),
    Case("HK014", lambda: tower(nn.Identity(), 12, 0.2), lambda: tower(nn.Identity(), 12, 0.5), "18", inputs=wide),
    Case("HK015", lambda: tower(nn.Identity(), 12, 5), lambda: tower(nn.Identity(), 12, 2), "12", inputs=wide),
    Case("HK016", lambda: Fn(lambda y: y * 0 + 2e4), lambda: Fn(lambda y: y * 0 + 1.6e4), "", 2e4),
    Case("HK017", lambda: Fn(lambda y: y * 1e-14), lambda: Fn(lambda y: y * 1e-6), ""),
    Case("HK018", lambda: Fn(lambda y: y / y.std() + 2000), lambda: Fn(lambda y: y / y.std() + 900), ""),
    Case("HK019", lambda: hooked(False), lambda: hooked(True), "layer", 1),
    Case("HK020", norm(False), norm(True), "1"),
    Case("HK021", Fn, Fn, "", settings={"expect_output": "*x5"}, near={"expect_output": "*x4:float32"}),
    Case("HK022", Fn, Fn, "", 20, settings={"thresholds": {"max-params": 19}}, near={"thresholds": {"HK022": "20"}}),
    Case("HK023", Fn, Fn, "", 256, settings={"thresholds": {"HK023": 255}}, near={"thresholds": {"HK023": "0.256K"}}),
    Case("HK024", Fn, Fn, "", 256, settings={"thresholds": {"HK024": 255}}, near={"thresholds": {"HK024": "256B"}}),
    Case("HK025", lambda: Noisy(False), lambda: Noisy(True), "layer", settings={"repeat": 2}),
    Case("HK026", lambda: Reshapes(16), lambda: Reshapes(-1), "", settings={"split_batch": True}),
    Case("HK028", lambda: Dropped(True), lambda: Dropped(False), "1", 1),
    Case("HK029", lambda: Counts("eval"), lambda: Counts("train"), "1", 1.0),
    Case("HK030", lambda: Keeps([nn.Linear(4, 4)]), lambda: Keeps([nn.Linear(4, 4).requires_grad_(False)]), "", 20),
    Case("HK031", lambda: in_eval_mode(False), lambda: in_eval_mode(True), "1", 1),
    Case("HK032", lambda: frozen(1), lambda: frozen(0), "1", 1),
    Case("HK034", lambda: ending(nn.Softmax(-1)), lambda: ending(nn.LogSoftmax(-1)), "1", settings=CROSS_ENTROPY),
    Case("HK035", lambda: normed(nn.BatchNorm1d(4)), lambda: normed(nn.LayerNorm(4)), "0", 4),
    Case("HK036", lambda: Fn(before=lambda x: x.mul_(2)), lambda: Fn(before=lambda x: x.clone().mul_(2)), "", 1),
    Case("HK037", lambda: plain(torch.randn(4, 4)), lambda: plain(nn.Buffer(torch.randn(4, 4))), "", 16),
]  # fmt: skip


def test_each_check_has_a_case() -> None:
    """HK027, which needs a file, and those of recorded and compiled runs and of capabilities have their own."""
    of_capabilities = (name for one in capabilities() for name in one.checks)
    of_runs = (f"HK0{number}" for number in (*range(38, 45), *range(53, 56)))
    elsewhere = ("HK027", *of_runs, *of_capabilities)
    assert sorted([*(case.id for case in BROKEN), *elsewhere]) == [kind.id for kind in known_checks()]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.id)
def test_it_catches_and_does_not_overreach(case: Case) -> None:
    require_caught(case)


def require_caught(case: Case) -> None:
    """Fails unless the check finds the fault of the case, and nothing in the near miss."""
    report = found(case, near=False)
    first = report.findings[0]
    kind = next(kind for kind in known_checks() if kind.id == case.id)
    assert {f.check for f in report.findings} == {case.id} and first.severity == kind.severity
    if case.fqn or case.value is not None:
        assert first.fqn == case.fqn
    if case.value is not None:
        assert first.value == pytest.approx(case.value)
    if case.id != "HK020":  # whose finding has the cause that was found
        assert first.hint == f"{kind.means}; {kind.advice}"
    assert first.hint and report.rows[0]["message"] == first.message
    missed = found(case, near=True)
    assert missed.findings == [] and missed.totals["checks"] == 1


def test_a_healthy_model_has_nothing_and_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)
    ).train()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    x = torch.randn(2, 3, 8, 8)
    with untouched(model):
        report = check(model, x, repeat=2, split_batch=True, expect_output="*x10")
    asked = 3  # by the settings
    every = {"errors": 0, "warnings": 0, "checks": usual_checks() + asked, "modules": 6}
    assert report.findings == [] and report.totals == every
    assert model.training and report.meta["checks"][0] == "HK001"


@pytest.mark.parametrize(
    ("before", "after", "severities"),
    [
        (torch.nan_to_num, None, {"HK002": "info"}),
        (lambda x: torch.where(x.isnan(), torch.zeros(4), x), None, {"HK002": "info"}),
        (None, None, {"HK002": "error", "HK003": "error"}),
        (torch.nan_to_num, lambda y: y / 0.0, {"HK002": "error", "HK003": "error"}),
        (torch.nan_to_num, lambda y: (y * 0).sqrt(), {"HK002": "error", "HK004": "error"}),
    ],
)
def test_missing_values_that_the_model_fills_in_are_no_more_than_a_note(
    before: Any, after: Any, severities: dict[str, str]
) -> None:
    model = Fn(after or torch.tanh, before or torch.tanh)
    report = check(model, with_nan(), select=["HK002", *severities], loss="sum")
    assert {finding.check: finding.severity for finding in report.findings} == severities


def test_thresholds_move_the_verdict() -> None:
    report = check(biased(nn.ReLU(), 3), torch.randn(64, 4), select="HK010", thresholds={"dead-units": 0.3})
    assert [(f.value, f.threshold) for f in report.findings] == [(3 / 8, 0.3)]


def test_few_values_per_channel_are_said_and_not_judged() -> None:
    model = biased(nn.ReLU(), 7)
    with torch.no_grad():
        model[0].bias[7] = 100.0  # else the eighth is zero by chance, and a layer without any life is judged
    report = check(model, torch.randn(2, 4), select="HK010")
    assert report.findings == [] and "too few values per channel (< 8)" in report.skipped[0].reason


def test_a_module_is_judged_by_those_of_its_calls_that_have_enough_values() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = biased(nn.ReLU(), 7)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x[:1]).sum() + self.net(x).sum()

    report = check(Twice(), torch.randn(64, 4), select="HK010")
    assert [one.value for one in report.findings] == [7 / 8] and report.skipped == []


@pytest.mark.parametrize("last", [False, True])
def test_dead_channels_are_found_where_the_features_are(last: bool) -> None:
    """An activation called as a function, after a convolution and after a Linear on a sequence."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(4, 8) if last else nn.Conv1d(4, 8, 1)
            with torch.no_grad():
                self.mix.bias[:6] = -100

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.mix(x))

    model = nn.Sequential(Block(), nn.Flatten(), nn.Linear(80, 2))
    report = check(model, torch.randn(4, 10, 4) if last else torch.randn(4, 4, 10), select="HK010")
    assert [(f.fqn, f.value) for f in report.findings] == [("0", 6 / 8)]


def test_a_relu6_at_its_upper_bound_is_saturated_and_a_dead_one_is_not() -> None:
    report = check(biased(nn.ReLU6(), 7, bias=100.0), torch.randn(16, 4), select=["HK010", "HK011"])
    assert [(f.check, f.value) for f in report.findings] == [("HK011", 7 / 8)]
    report = check(biased(nn.ReLU6(), 7), torch.randn(16, 4), select=["HK010", "HK011"])
    assert [f.check for f in report.findings] == ["HK010"]
