"""What inputs, activations and grads report, against PyTorch computing the same directly in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torchvision
from support import Hand, Nested, Shared, assert_stats, float64_stats, swept, untouched
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hookcli.engine.capture import capture
from hookcli.engine.step import Step
from hookcli.probes.grads import GradsProbe


def test_activations_by_hand() -> None:
    model = Hand()
    with untouched(model):
        report = capture(model, torch.tensor([[1.0, 0.0]]), ["activations"])[0]
    means = {row.fqn: row["mean"] for row in report.rows}
    # 2x - 1 = (1, -1); relu (1, 0); 3 * 1
    assert means == {"": 3.0, "first": 0.0, "relu": 0.5, "out": 3.0}
    assert {row.fqn: row["zeros"] for row in report.rows}["relu"] == 1
    assert math.isnan(report.rows[0]["std"])


def test_inputs_by_hand() -> None:
    report = capture(Hand(), torch.tensor([[1.0, 0.0]]), ["inputs"])[0]
    assert {row.fqn: row["mean"] for row in report.rows} == {"": 0.5, "first": 0.5, "relu": 0.0, "out": 0.5}


def test_gradients_by_hand_in_the_order_of_arrival() -> None:
    model = Hand()
    with untouched(model):
        report = capture(model, torch.tensor([[1.0, 0.0]]), ["grads"], loss="sum")[0]
    sums = [(row.fqn, row["mean"] * row["numel"]) for row in report.rows]
    # d/d out.weight = relu (1, 0); d/d first = (3, 0), times x = (1, 0)
    assert sums[0] == ("out.weight", 1.0)
    assert dict(sums) == {"out.weight": 1.0, "first.bias": 3.0, "first.weight": 3.0}


@pytest.mark.parametrize(("of", "expected"), [("outputs", [3.0, 0.0]), ("inputs", [6.0, 0.0])])
def test_gradients_of_outputs_and_inputs_by_hand(of: str, expected: list[float]) -> None:
    model = Hand()
    with untouched(model):
        report = capture(model, torch.tensor([[1.0, 0.0]]), [GradsProbe(of)], loss="sum")[0]  # type: ignore[arg-type]
    row = next(row for row in report.rows if row.fqn == "first")
    assert (row["max"], row["min"], row["kind"]) == (max(expected), min(expected), of.removesuffix("s"))


@pytest.mark.sweep
@pytest.mark.parametrize("train", [False, swept(True)])
def test_resnet_activations_agree_with_float64(train: bool) -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).train(train)
    x, kept = torch.randn(2, 3, 64, 64), {}
    handles = [
        m.register_forward_hook(lambda m, a, o, n=n: kept.setdefault(n, []).append(o.clone()))
        for n, m in model.named_modules()
    ]
    with torch.no_grad():
        state = {k: v.clone() for k, v in model.state_dict().items()}
        model(x)
        model.load_state_dict(state)
    for handle in handles:
        handle.remove()
    with untouched(model):
        report = capture(model, x, ["activations"])[0]
    assert len(report.rows) == sum(map(len, kept.values()))
    for row in report.rows:
        assert_stats(row.stats, float64_stats(kept[row.fqn][row["call"]]))


@pytest.mark.sweep
def test_resnet_parameter_gradients_agree_and_fc_bias_comes_first() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).eval()
    x = torch.ones(2, 3, 64, 64)
    with untouched(model):
        report = capture(model, x, ["grads"], loss="cross-entropy")[0]
    cross_entropy(model(x), torch.zeros(2, dtype=torch.long)).backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    assert report.rows[0].fqn == "fc.bias" and report.rows[-1].fqn == "conv1.weight"
    assert {row.fqn for row in report.rows} == grads.keys()
    for row in report.rows:
        assert grads[row.fqn] is not None
        assert_stats(row.stats, float64_stats(grads[row.fqn]))  # type: ignore[arg-type]


def test_two_passes_accumulate() -> None:
    report = capture(Hand(), torch.tensor([[1.0, 0.0]]), ["grads"], step=Step(passes=2, loss="sum"))[0]
    rows = {(row.fqn, row["pass"]): row["mean"] for row in report.rows}
    assert rows["out.weight", 0] == 0.5 and rows["out.weight", 1] == 1.0


def test_gradients_that_were_there_are_put_back_and_not_added_to() -> None:
    model = Hand()
    model.out.weight.grad = torch.full((1, 2), 7.0)
    with untouched(model):
        report = capture(model, torch.tensor([[1.0, 0.0]]), ["grads"], loss="sum")[0]
    assert report.rows[0].fqn == "out.weight" and report.rows[0]["max"] == 1.0


@pytest.mark.parametrize("vector", ["ones", "randn"])
def test_a_vector_jacobian_product(vector: str) -> None:
    model, x = Hand(), torch.tensor([[1.0, 0.0], [2.0, 2.0]])
    report = capture(model, x, ["grads"], step=Step(backward_vector=vector))[0]
    given = torch.ones(2, 1) if vector == "ones" else torch.randn(2, 1, generator=torch.Generator().manual_seed(0))
    (expected,) = torch.autograd.grad(model(x), model.out.weight, given)
    assert_stats(report.rows[0].stats, float64_stats(expected))


@pytest.mark.parametrize(
    ("what", "paths"),
    [
        ("dict", ['["out"]', '["aux"]']),
        ("tuple", ["[0]", "[1][0]", "[1][1]"]),
        ("named", [".main", ".aux"]),
        ("dataclass", [".hidden", ".extra[0]"]),
    ],
)
def test_nested_outputs_have_a_row_per_tensor(what: str, paths: list[str]) -> None:
    model, x = Nested(what), torch.randn(2, 3)
    for probe in ("activations", GradsProbe("outputs")):
        rows = [row for row in capture(model, x, [probe], loss="sum")[0].rows if not row.fqn]
        assert sorted(row["path"] for row in rows) == sorted(paths)
    body = float64_stats(model.body(x).detach() + 1)
    last = next(r for r in capture(model, x, ["activations"])[0].rows if not r.fqn and r["path"] == paths[1])
    assert_stats(last.stats, body)


def test_three_calls_are_three_rows() -> None:
    model, ids = Shared(), torch.tensor([[1, 2]])
    rows = [row for row in capture(model, ids, ["activations"])[0].rows if row.fqn == "mix"]
    x = model.embed(ids).detach()
    for call, row in enumerate(rows):
        x = model.mix(x).detach()
        assert row["call"] == call
        assert_stats(row.stats, float64_stats(x))
    assert len(rows) == 3


def test_tied_parameters_have_one_gradient() -> None:
    report = capture(Shared(), torch.tensor([[1, 2]]), ["grads"])[0]
    assert [row.fqn for row in report.rows].count("embed.weight") == 1
    assert {row.fqn for row in report.rows} == {"embed.weight", "mix.weight", "mix.bias"}


def test_keyword_arguments_are_inputs_too() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, x, value=x, need_weights=False)[0]

    report = capture(Masked(), torch.ones(2, 1, 4), ["inputs"])[0]
    assert [row["path"] for row in report.rows if row.fqn == "inner"] == ["[0]", "[1]", '["value"]']


def test_sparse_gradients_count_their_implied_zeros() -> None:
    model = nn.Embedding(100, 4, sparse=True)
    report = capture(model, torch.tensor([[3, 3, 5]]), ["grads"], loss="sum")[0]
    row = report.rows[0]
    assert (row["numel"], row["zeros"], row["max"]) == (400, 392, 2.0)
    assert row["mean"] == pytest.approx(12 / 400)


def test_what_was_not_measured_is_said() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
            self.frozen.requires_grad_(False)
            self.parts = nn.ModuleList([nn.Linear(2, 2)])

        def forward(self, x: Tensor) -> tuple[Tensor, str]:
            self.parts[0](x)
            return self.used(self.frozen(x)), "words"

    reasons = {s.fqn: s.reason for s in capture(Partly(), torch.ones(1, 2), ["activations"])[0].skipped}
    assert reasons == {"unused": "never called in train mode"}
    reasons = {s.fqn: s.reason for s in capture(Partly(), torch.ones(1, 2), ["grads"], loss="sum")[0].skipped}
    assert (
        reasons["unused.weight"] == "no gradient reached it"
        and reasons["frozen.bias"] == "frozen (requires_grad=False)"
    )
    report = capture(Partly(), torch.ones(1, 2), [GradsProbe("outputs")], loss="sum")[0]
    reasons = {s.fqn: s.reason for s in report.skipped}
    assert reasons["parts.0"] == "output: no gradient reached it" and "require grad" in reasons["frozen"]


def test_low_precision_and_non_finite_values() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Identity()).half()
    with torch.no_grad():
        model[0].bias[0] = math.inf
        model[0].bias[1] = math.nan
    x = torch.ones(3, 4).half()
    row = next(r for r in capture(model, x, ["activations"])[0].rows if r.fqn == "1")
    assert (row["inf"], row["nan"], row["dtype"]) == (3, 3, "float16")
    assert_stats(row.stats, float64_stats(model(x)))


def test_an_output_passed_on_unchanged_is_reduced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import hookcli.tensors.stats as module

    real, calls = module.measure, []
    monkeypatch.setattr(module, "measure", lambda t, **how: calls.append(t.shape) or real(t, **how))
    model = nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(2, 2))), nn.ReLU(inplace=True))
    report = capture(model, torch.ones(1, 2), ["activations"])[0]
    assert len(report.rows) == 5 and len(calls) == 2
