"""Each check on a model that it must catch, and on a near miss that it must not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from support import untouched
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm

from hookcli import check
from hookcli.checks.selection import known_checks
from hookcli.report.formatting import figure, number


class Fn(nn.Module):
    """A layer between two functions, for models of one line."""

    def __init__(self, after: Callable[[Tensor], Any] = lambda y: y, before: Any = lambda x: x, width: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.after, self.before = after, before

    def forward(self, x: Tensor) -> Any:
        return self.after(self.layer(self.before(x)))


class Amplify(nn.Module):
    """Hands on what it gets, and back a multiple of it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.factor - 1) * (x - x.detach())


def tower(activation: nn.Module, depth: int, gain: float | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        linear = nn.Linear(16, 16, bias=gain is None)
        if gain is not None:
            nn.init.orthogonal_(linear.weight, gain)
        layers += [linear, activation]
    return nn.Sequential(*layers, nn.Linear(16, 3))


def wide() -> Tensor:
    return torch.randn(16, 16)


def biased(activation: nn.Module, dead: int, of: int = 8, bias: float = -100.0) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, of), activation, nn.Linear(of, 2))
    with torch.no_grad():
        model[0].bias[:dead] = bias
    return model


def filled(value: float, model: nn.Module | None = None) -> nn.Module:
    model = model or Fn()
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = value
    return model


class Parts(nn.Module):
    """What is built, and what is used."""

    def __init__(self, use_extra: bool = False, call_drop: bool = False, functional: bool = False) -> None:
        super().__init__()
        self.layer, self.extra, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.1)
        self.use_extra, self.call_drop, self.functional = use_extra, call_drop, functional

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if self.use_extra:
            y = self.extra(y)
        if self.functional:
            y = nn.functional.linear(y, self.extra.weight, self.extra.bias)
        return self.drop(y) if self.call_drop else y


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


class Noisy(nn.Module):
    """Random by Python's generator, or by PyTorch's."""

    def __init__(self, torchs: bool) -> None:
        super().__init__()
        self.first, self.layer, self.torchs = nn.Linear(4, 4), nn.Linear(4, 4), torchs

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.first(x) * (torch.rand(()) if self.torchs else random.random()))


class Dropped(nn.Sequential):
    """A dropout that is never switched off, or one that is, in a part of the model."""

    def __init__(self, always: bool) -> None:
        super().__init__(nn.Linear(4, 4), Fn(lambda y: nn.functional.dropout(y, training=always or self.training)))


class Count(nn.Module):
    """Multiplies by the number of its calls, in eval mode or when it is trained."""

    def __init__(self, mode: str, buffer: bool) -> None:
        super().__init__()
        self.mode, self.number = mode, 0
        if buffer:
            del self.number
            self.register_buffer("number", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training == (self.mode == "train"):
            self.number += 1
        return x * self.number if not self.training and self.mode == "eval" else x


class Counts(nn.Sequential):
    def __init__(self, mode: str, buffer: bool = True) -> None:
        super().__init__(nn.Linear(4, 4), Count(mode, buffer), nn.Linear(4, 2, bias=False))


def named(outputs: int) -> nn.Module:
    return Fn(lambda y: {"out": y, "aux": y.sum(1)} if outputs == 2 else {"out": y})


@dataclass
class Case:
    id: str
    caught: Callable[[], nn.Module]
    missed: Callable[[], nn.Module]
    fqn: str
    value: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    near: dict[str, Any] | None = None
    inputs: Callable[[], Any] = lambda: torch.randn(16, 4)
    near_inputs: Callable[[], Any] | None = None


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


def frozen(number: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[number].requires_grad_(False)
    return model


def norm(tracked: bool) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=tracked), nn.Linear(4, 2))


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
    Case("HK012", lambda: tower(nn.Sigmoid(), 10), lambda: tower(nn.Sigmoid(), 3), "0.weight", inputs=wide),
    Case("HK013", lambda: tower(Amplify(4), 10, 1), lambda: tower(Amplify(2), 10, 1), "", inputs=wide),
    Case("HK014", lambda: tower(nn.Identity(), 12, 0.2), lambda: tower(nn.Identity(), 12, 0.5), "18", inputs=wide),
    Case("HK015", lambda: tower(nn.Identity(), 12, 5), lambda: tower(nn.Identity(), 12, 2), "12", inputs=wide),
    Case("HK016", lambda: Fn(lambda y: y * 0 + 2e4), lambda: Fn(lambda y: y * 0 + 1.6e4), "", 2e4),
    Case("HK017", lambda: Fn(lambda y: y * 1e-14), lambda: Fn(lambda y: y * 1e-9), ""),
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
]  # fmt: skip


def found(case: Case, near: bool) -> Any:
    torch.manual_seed(1)
    model = (case.missed if near else case.caught)()
    inputs = (case.near_inputs if near and case.near_inputs else case.inputs)()
    settings = case.near if near and case.near is not None else case.settings
    state = random.getstate()
    with untouched(model):
        report = check(model, inputs, select=case.id, **settings)
        random.setstate(state)  # Python's generator is the model's affair
        return report


def test_each_check_has_a_case() -> None:
    """HK027, which needs a file, has its own beside this one."""
    assert sorted([*(case.id for case in BROKEN), "HK027"]) == [kind.id for kind in known_checks()]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.id)
def test_it_catches_and_does_not_overreach(case: Case) -> None:
    report = found(case, near=False)
    first = report.findings[0]
    kind = next(kind for kind in known_checks() if kind.id == case.id)
    assert {f.check for f in report.findings} == {case.id} and first.severity == kind.severity
    if case.fqn or case.value is not None:
        assert first.fqn == case.fqn
    if case.value is not None:
        assert first.value == pytest.approx(case.value)
    assert first.hint == f"{kind.means}; {kind.advice}" and report.rows[0]["message"] == first.message
    missed = found(case, near=True)
    assert missed.findings == [] and missed.totals["checks"] == 1


def test_a_healthy_model_has_nothing_and_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).train()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    x = torch.randn(2, 3, 8, 8)
    with untouched(model):
        report = check(model, x, repeat=2, split_batch=True, expect_output="*x10")
    assert report.findings == [] and report.totals == {"errors": 0, "warnings": 0, "checks": 28, "modules": 6}
    assert model.training and report.meta["checks"][0] == "HK001"


def test_thresholds_move_the_verdict() -> None:
    report = check(biased(nn.ReLU(), 3), torch.randn(64, 4), select="HK010", thresholds={"dead-units": 0.3})
    assert [(f.value, f.threshold) for f in report.findings] == [(3 / 8, 0.3)]


def test_few_values_per_channel_are_said_and_not_judged() -> None:
    report = check(biased(nn.ReLU(), 7), torch.randn(2, 4), select="HK010")
    assert report.findings == [] and "too few values per channel (< 8)" in report.skipped[0].reason


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


def test_the_first_of_what_is_not_finite_is_named_with_those_after_it() -> None:
    model = nn.Sequential(Fn(), Fn(torch.log), Fn(), Fn())
    [finding] = check(model, torch.randn(8, 4), select="HK003").findings
    assert finding.fqn == "1" and finding.message.endswith("and in 2 modules after it")


def test_a_crash_keeps_what_was_seen_and_does_not_blame_what_never_came() -> None:
    model = nn.Sequential(Fn(torch.log), nn.Linear(5, 2), nn.Linear(2, 2))
    report = check(model, torch.randn(8, 4))
    assert {f.check: f.fqn for f in report.findings} == {"HK001": "1", "HK003": "0"}
    assert "1 (Linear) failed on input 8x4" in report.findings[0].message
    left = {s.fqn.split()[0] for s in report.skipped}
    assert report.meta["checks"] == ["HK001", "HK003"] and report.meta["complete"] is False
    assert left == {kind.id for kind in known_checks() if not kind.asked_by} - {"HK001", "HK003"}
    assert {s.reason for s in report.skipped} == {"not judged: the run crashed"}


def test_a_crash_in_backward() -> None:
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise ValueError("no derivative")

    report = check(nn.Sequential(Fn(Breaks.apply), nn.Linear(4, 2)), torch.randn(8, 4))
    assert [f.check for f in report.findings] == ["HK001"] and "no derivative" in report.findings[0].message


def test_an_output_that_leads_nowhere_is_no_crash() -> None:
    report = check(Fn(lambda y: y.detach()), torch.randn(8, 4))
    assert [(f.check, f.fqn, f.message) for f in report.findings] == [
        ("HK008", "", "no gradient reached layer.weight, layer.bias")
    ]


def test_a_frozen_model_is_judged_without_gradients() -> None:
    report = check(Fn().requires_grad_(False), torch.randn(8, 4))
    reasons = {s.reason for s in report.skipped}
    assert report.findings == [] and reasons == {"not judged: nothing requires a gradient"}


def test_bfloat16_has_the_range_of_float32() -> None:
    model = Fn(lambda y: y * 0 + 2e4).to(torch.bfloat16)
    assert check(model, torch.randn(4, 4, dtype=torch.bfloat16), select="HK016").findings == []


@pytest.mark.parametrize("what", ["named", "counted", "path"])
def test_expectations_of_nested_outputs(what: str) -> None:
    model, x = named(2), torch.randn(16, 4)
    assert check(model, x, expect_output=["out=*x4:float32", "aux=16"], select="HK021").findings == []
    assert check(model, x, expect_output=["16x4", "*"], select="HK021").findings == []
    wrong = {
        "named": (["out=*x4:float16"], "returned out=16x4:float32, expected out=*x4:float16"),
        "counted": (["*x4"], "returned out=16x4:float32, aux=16:float32, expected *x4"),
        "path": (["logits=*x4"], "returned no tensor 'logits'; available: out, aux"),
    }
    expected, message = wrong[what]
    [finding] = check(model, x, expect_output=expected, select="HK021").findings
    assert finding.message == message


def test_stochastic_depth_is_no_lost_gradient() -> None:
    from torchvision.ops import StochasticDepth

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = nn.Linear(4, 4), StochasticDepth(1.0, "row")

        def forward(self, x: Tensor) -> Tensor:
            return x + self.drop(self.layer(x))

    model = nn.Sequential(nn.Linear(4, 4), Block(), nn.Linear(4, 2))
    assert check(model, torch.randn(8, 4), select="HK009").findings == []


def test_the_module_that_mixes_the_batch_is_named_and_state_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Fn(lambda y: y - y.mean(0)), nn.Linear(4, 2))
    model[1].eval()  # frozen, as one does when fine-tuning
    x = torch.randn(4, 4)
    with untouched(model):
        [finding] = check(model, x, select="HK020").findings
    assert finding.fqn == "2" and finding.value is not None and finding.value > 1e-3


def test_a_batch_that_has_no_items_is_said() -> None:
    reasons = [s.reason for s in check(Fn(), torch.randn(1, 4), select="HK020").skipped]
    assert reasons == ["not judged: the inputs have no common dimension 0 of two or more; use --batch-size 2"]


def test_a_list_of_images_is_no_batch_whose_size_could_tell() -> None:
    images = [torch.ones(3, 4), torch.ones(3, 4)]
    [skipped] = check(Fn(before=torch.stack), (images,), select="HK020").skipped
    assert "container of tensors" in skipped.reason and "--batch-size" not in skipped.reason


def test_half_batches_that_give_other_shapes_or_state_that_passes_on() -> None:
    [finding] = check(Counts("eval", buffer=False), torch.randn(4, 4), select="split-batch").findings
    assert finding.value is not None and finding.value > 0.3
    model = Fn(lambda y: y.repeat(1, len(y)))
    [finding] = check(model, torch.randn(4, 4), select="HK026").findings
    assert "halves give 2x8 and 2x8 where the whole gives 4x16" in finding.message


def test_one_cause_is_one_finding() -> None:
    """Of what got no gradient the outermost module, of zeros that nearest to the loss, of repeated layers the first."""
    model = nn.Sequential(Fn(), Parts(), nn.Sequential(Parts(), Parts(True)))
    model[2][0].layer.requires_grad_(False)
    found = check(model, torch.randn(16, 4), select=["HK007", "HK008"]).findings
    assert [(f.check, f.fqn, f.message, f.value) for f in found] == [
        ("HK008", "1.extra", "no gradient reached weight, bias", 2),
        ("HK008", "2.0", "no gradient reached extra.weight, extra.bias", 2),
        ("HK007", "1.drop", "Dropout was never called, nor were 2 others of that name", 3),
    ]
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    nn.init.zeros_(model[2].weight)
    [zero] = check(model, torch.randn(16, 4), select="HK009").findings
    assert (zero.fqn, zero.value) == ("1", 4)
    said = "the gradient of bias, weight is all zero: the gradient that flows back to it is zero"
    assert zero.message == f"{said}; so is that of 2 parameters of other modules"


def test_a_weight_whose_input_is_zero_is_told_from_one_that_nothing_flows_back_to() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Fn(before=lambda x: torch.relu(x - 100)))
    [zero] = check(model, torch.randn(16, 4), select="HK009").findings
    said = "the gradient of weight is all zero, but that of bias is not: the layer's input is zero"
    assert (zero.fqn, zero.message) == ("1.layer", f"{said}; so is that of 2 parameters of other modules")


@pytest.mark.parametrize(("id", "gain"), [("HK014", 0.2), ("HK015", 5.0)])
def test_the_block_where_a_threshold_is_crossed_is_named_with_its_own_figure(id: str, gain: float) -> None:  # noqa: A002
    """Each layer multiplies the standard deviation by its gain, being orthogonal."""
    torch.manual_seed(0)
    model = tower(nn.Identity(), 12, gain)
    [finding] = check(model, wide(), select=id, thresholds={id: gain**4}).findings
    assert finding.fqn in ("8", "10") and finding.value == pytest.approx(gain ** (int(finding.fqn) / 2), rel=0.2)
    assert f" is {number(finding.value)} " in finding.message and " it in " in finding.message


def test_the_first_module_that_overflows_is_named_not_the_largest() -> None:
    layers = [
        Fn(lambda y: y * 0 + 1),
        nn.Sequential(nn.Identity(), Fn(lambda y: y * 0 + 2e4)),
        Fn(lambda y: y * 0 + 5e4),
    ]
    report = check(nn.Sequential(*layers), torch.randn(16, 4), select="HK016")
    [finding] = report.findings
    assert (finding.fqn, finding.value) == ("1.1", 2e4)
    assert (
        finding.message
        == "what it returns reaches 20000; up to 50000 in 2, 5 places in all; the largest float16 number is 65504"
    )
    assert figure(finding.value) in finding.message, "as in the column of figures"


def test_a_model_that_writes_into_its_input_is_judged_on_the_same_each_time() -> None:
    x = torch.randn(16, 4)
    before = x.clone()
    model = Fn(before=lambda given: given.mul_(3).add_(1))
    assert check(model, x, repeat=3, split_batch=True).findings == []
    assert torch.equal(x, before)


def test_a_checkpoint_of_nan_is_one_finding() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with torch.no_grad():
        for tensor in (*model.parameters(), model[1].running_var):
            tensor.fill_(math.nan)
    [finding] = check(model, torch.randn(8, 4), select="HK005").findings
    assert (finding.fqn, finding.value) == ("0.weight", 16)
    assert finding.message == "16 of 16 values are NaN, and in 4 tensors after it"
    [later] = check(model, torch.randn(8, 4), select="HK004").findings
    assert later.message.endswith(" values of its gradient are NaN, and in 2 parameters after it")


def test_a_dropout_is_no_excuse_for_what_was_dead_before_it() -> None:
    torch.manual_seed(0)
    dead = biased(nn.ReLU(), 8)
    model = nn.Sequential(nn.Sequential(dead[0], dead[1], nn.Dropout(0.1)), dead[2])
    [finding] = check(model, torch.randn(16, 4), select="HK009").findings
    assert finding.fqn == "1" and "2 parameters of other modules" in finding.message
    with torch.no_grad():
        dead[0].bias.zero_()
    assert check(model, torch.randn(16, 4), select="HK009").findings == []


def test_the_limit_in_half_precision_is_shown_and_hangs_on_no_other_check() -> None:
    torch.manual_seed(0)
    model = Fn(lambda y: y + 3 * y.mean(0)).bfloat16()
    x = torch.randn(8, 4, dtype=torch.bfloat16)
    alone, beside = (check(model, x, select=checks).findings for checks in (["HK020"], ["HK020", "HK005"]))
    assert alone == beside and alone[0].threshold == 16 * 2**-7
    slight = Fn(lambda y: y + 0.1 * y.mean(0)).bfloat16()
    assert check(slight, x, select="HK020").findings == check(slight, x, select=["HK020", "HK005"]).findings == []


class Adapter(nn.Linear):
    """Merges what it adds into its weight in eval mode and takes it out in training mode, as loralib's layers do."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("added", torch.ones(4, 4))
        self.merged = False

    def train(self, mode: bool = True) -> Any:
        if mode == self.merged:
            self.weight.data += self.added * (-1 if mode else 1)
            self.merged = not mode
        return super().train(mode)


@pytest.mark.parametrize("frozen", [False, True])
def test_modes_are_gone_back_to_the_way_they_were_left(frozen: bool) -> None:
    model = nn.Sequential(Adapter(), nn.Dropout(), nn.Linear(4, 2)).train()
    model[1].train(not frozen)
    weight = model[0].weight.detach().clone()
    check(model, torch.randn(8, 4), select=["HK020", "HK022"], thresholds={"max-params": 1000})
    assert not model[0].merged and torch.equal(model[0].weight, weight)
    assert [module.training for module in model.modules()] == [True, True, not frozen, True]


class Sequences(nn.Module):
    """Takes lengths, of which none may be 0."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.head(self.rnn(packed)[1][0][-1])


def test_the_other_items_are_such_as_the_model_takes() -> None:
    inputs = (torch.randn(3, 5, 4), torch.tensor([5, 4, 2]))
    report = check(Sequences(), inputs, select="HK020")
    assert report.findings == [] and report.meta["checks"] == ["HK020"]
    inverse = Fn(lambda y: torch.linalg.inv(y.view(-1, 2, 2)).flatten(1))
    report = check(inverse, torch.randn(3, 4), select="HK020")
    assert report.findings == [] and report.meta["checks"] == ["HK020"]


def test_a_model_that_refuses_other_items_is_not_judged() -> None:
    def ordered(y: Tensor) -> Tensor:
        if len(y.unique(dim=0)) < len(y):
            raise ValueError("two items are alike")
        return y

    report = check(Fn(ordered), torch.randn(3, 4), select="HK020")
    [skipped] = [item.reason for item in report.skipped if item.fqn.startswith("HK020")]
    assert report.findings == [] and skipped.startswith("not judged: with other items in the batch, ")
    assert "two items are alike" in skipped


class TrainsOnly(nn.Module):
    """Fails in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head, self.unused = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x) if self.training else self.layer(x)[:, :3])


@pytest.mark.parametrize(
    "settings", [{}, {"thresholds": {"max-macs": 1}}, {"ignore": ["HK020", "HK001"], "save": "b.json"}]
)
def test_a_model_that_fails_in_eval_mode_alone_is_judged_beside(
    settings: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, x = TrainsOnly(), torch.randn(8, 4)
    with untouched(model):
        report = check(model, x, **settings)
    assert [finding.check for finding in report.findings] == ["HK001", "HK008", "HK006"]
    assert report.findings[0].fqn == "head" and report.findings[0].message.startswith("in eval mode: head (Linear) fai")
    reasons = {item.fqn.split()[0]: item.reason for item in report.skipped}
    if "thresholds" in settings:
        assert reasons["HK023"] == reasons["HK020"] == "not judged: the model fails in eval mode"
    assert not (tmp_path / "b.json").exists()


class Recurrent(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.first, self.rnn = nn.Linear(4, 4), nn.LSTM(4, 4, bidirectional=True, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(self.first(x))[0]


@pytest.mark.parametrize("kind", ["inside", "root", "encoder", "quantized"])
def test_what_may_mix_the_batch_is_a_warning(kind: str) -> None:
    torch.manual_seed(0)
    model = {
        "inside": lambda: Recurrent(False),
        "root": lambda: nn.LSTM(4, 4, bidirectional=True),
        "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2, enable_nested_tensor=False),
        "quantized": lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear}),
    }[kind]()
    x = torch.randn(6, 3, 4) if kind != "quantized" else torch.randn(6, 4) * torch.tensor([[0.01], *[[9.0]] * 5])
    [finding] = check(model, x, select="HK020", thresholds={"HK020": 1e-6}).findings
    assert finding.severity == "warning" and ("batch_first=False" in finding.message) == (kind != "quantized")
    assert check(Recurrent(True), torch.randn(6, 3, 4), select="HK020").findings == []


class Scale(nn.Module):
    """LayerScale, or what is left of RMSNorm: features are in the last dimension, and stay there."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((8,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def test_scaling_by_zero_is_not_dead() -> None:
    model = nn.Sequential(nn.Linear(4, 8), Scale(0.0), nn.Linear(8, 2))
    assert check(model, torch.randn(16, 4), select="HK010").findings == []


def test_a_norm_of_ones_own_leaves_channels_where_they_are() -> None:
    linear, relu, head = biased(nn.ReLU(), 7)
    model = nn.Sequential(linear, Scale(1.0), relu, head)
    [finding] = check(model, torch.randn(4, 10, 4), select="HK010").findings
    assert finding.fqn == "2" and finding.message.startswith("7 of 8 channels ")


def test_a_phase_that_depends_on_the_batch_is_seen() -> None:
    """All magnitudes are 1."""
    model = Fn(lambda y: torch.polar(torch.ones_like(y), y.sum(0, keepdim=True).expand_as(y)).conj())
    [finding] = check(model, torch.randn(8, 4), select="HK020").findings
    assert finding.value is not None and finding.value > 1e-2


class Listed(nn.Module):
    """Calls what it holds in a ModuleList, as nn.TransformerEncoder does: the list itself is never called."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers.children())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("wrapper", [lambda layers: layers, Listed])
@pytest.mark.parametrize(("gain", "id"), [(0.2, "HK014"), (5.0, "HK015")])
def test_a_wrapper_is_no_first_block(gain: float, id: str, wrapper: Any) -> None:  # noqa: A002
    """What it returns is the last block's output, and comparing with that would turn the verdict round."""
    torch.manual_seed(1)
    model = nn.Sequential(wrapper(tower(nn.Identity(), 12, gain)))
    found = check(model, wide(), select=["HK014", "HK015"]).findings
    assert [f.check for f in found] == [id] and found[0].fqn.startswith("0.")


def test_a_list_of_images_is_no_batch_but_has_its_eval_mode() -> None:
    class Detects(nn.Module):
        def __init__(self, always: bool) -> None:
            super().__init__()
            self.body = Dropped(always)

        def forward(self, images: list[Tensor]) -> list[Tensor]:
            return [self.body(image) + (torch.rand(()) if self.body[1].training else 0) for image in images]

    images = ([torch.randn(2, 4), torch.randn(3, 4)],)
    assert check(Detects(False), images, select="HK028").findings == []
    [finding] = check(Detects(True), images, select="HK028").findings
    assert (finding.fqn, finding.severity) == ("body.1", "warning")
    assert finding.message == "draws random numbers in eval mode"


def test_a_model_that_fails_in_eval_mode_is_told_once() -> None:
    model = Fn(lambda y: y if model.training else y.view(3, 7))
    report = check(model, torch.randn(4, 4))
    assert [(f.check, f.message.partition(" failed")[0]) for f in report.findings] == [
        ("HK001", "in eval mode: the model (Fn)")
    ]
    assert "HK028 random-in-eval" in {item.fqn for item in report.skipped}


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize("batch", [1, 4])
def test_state_is_told_from_dependence_on_the_batch(buffer: bool, batch: int) -> None:
    model, x = Counts("eval", buffer), torch.randn(batch, 4)
    with untouched(model):
        report = check(model, x, select=["HK020", "HK028", "HK029"])
    [finding] = report.findings
    assert (finding.check, finding.fqn, finding.severity) == ("HK029", "1", "error")
    assert "a second run on the same batch gives another result, by " in finding.message
    if batch > 1 and not buffer:  # a buffer is put back before other batches are compared
        [item] = report.skipped
        assert item.fqn == "HK020 batch-dependence" and "HK029" in item.reason
    assert check(Counts("eval", False), torch.randn(4, 4), select="HK020").findings == []


def test_what_mixes_the_batch_is_not_state() -> None:
    report = check(Fn(lambda y: y - y.mean(0)), torch.randn(4, 4), select=["HK020", "HK029"])
    assert [f.check for f in report.findings] == ["HK020"]


def test_random_numbers_that_torch_does_not_seed_are_state() -> None:
    state = random.getstate()
    report = check(Noisy(False), torch.randn(4, 4), select=["HK020", "HK028", "HK029"])
    random.setstate(state)
    assert [(f.check, f.fqn) for f in report.findings] == [("HK029", "layer")]


def test_a_cache_that_breaks_the_second_run() -> None:
    class Caches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(0, 4))

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                self.seen = torch.cat([self.seen, x])
                x = x + self.seen
            return x

    [finding] = check(Caches(), torch.randn(4, 4), select=["HK020", "HK029"]).findings
    assert finding.check == "HK029" and finding.message.startswith(
        "in eval mode, on the second run, the model (Caches)"
    )


class Functional(nn.Module):
    """A ReLU between two layers that is no module, and what may follow it."""

    def __init__(self, dead: int, relu: Callable[[Tensor], Tensor], then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.LazyLinear(2)
        self.relu, self.then = relu, then
        with torch.no_grad():
            self.conv.bias[:dead] = -100

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.then(self.relu(self.conv(x))))


RELUS: dict[str, Callable[[Tensor], Tensor]] = {
    "F.relu": nn.functional.relu,
    "in place": nn.functional.relu_,
    "torch": torch.relu,
    "method": Tensor.relu,
    "relu6": nn.functional.relu6,
}
THEN: dict[str, Callable[[Tensor], Tensor]] = {
    "at once": lambda y: y,
    "flat": lambda y: y.flatten(1),
    "pooled": lambda y: nn.functional.max_pool2d(y, 2).flatten(1),
    "averaged": lambda y: y.mean((2, 3)),
}
# Of the others autograd keeps the input and not the result.
WAYS = [(relu, "at once") for relu in RELUS] + [("F.relu", then) for then in THEN] + [("torch", "pooled")]


@pytest.mark.parametrize(("relu", "then"), WAYS)
def test_dead_units_of_a_relu_that_is_a_function(relu: str, then: str) -> None:
    x = torch.randn(2, 3, 8, 8)
    for dead in (7, 5):
        model = Functional(dead, RELUS[relu], THEN[then])
        model(x)  # makes the lazy layer
        with untouched(model):
            report = check(model, x, select=["HK009", "HK010"])
        found = [f for f in report.findings if f.check == "HK010"]
        if dead == 5:
            assert found == []
        else:
            [finding] = found
            assert (finding.fqn, finding.value) == ("fc", 7 / 8)
            assert finding.message == "7 of 8 channels of the ReLU before it are zero for every input"


def test_a_dead_relu_that_two_layers_share_is_one_finding() -> None:
    class Heads(Functional):
        def forward(self, x: Tensor) -> Tensor:
            y = self.relu(self.conv(x))
            return self.fc(y) + self.fc(y.clone())

    model = Heads(7, torch.relu, lambda y: y)
    x = torch.randn(2, 3, 8, 8)
    model(x)
    assert [f.check for f in check(model, x, select=["HK004", "HK010"]).findings] == ["HK010"]


def test_zeros_that_no_relu_made_are_no_dead_units() -> None:
    """A state that begins at zero, a mask: what a module receives may be zero on purpose."""
    model = Fn(before=lambda x: x * torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert check(model, torch.randn(16, 4), select=["HK004", "HK010"]).findings == []
