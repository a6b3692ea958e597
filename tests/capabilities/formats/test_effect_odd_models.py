"""The effect of rounding on odd models: expanded and parametrized weights, images, dropout, and models that change."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from capabilities.formats.test_effect import effect
from support import untouched
from torch import Tensor, nn

from hookcli.capabilities.formats.effect_verdict import Effects, most_sensitive, verdict
from hookcli.capabilities.formats.layout import ACTIVATIONS, WEIGHTS
from hookcli.capabilities.formats.roundings import Layer
from hookcli.engine.output_changes import Outputs
from hookcli.probes.shared.layer_rows import rounded_input


def test_rounded_images_keep_their_layout_so_that_dropout_drops_the_same_values() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5), nn.Conv2d(8, 4, 3))
    x = torch.randn(2, 3, 12, 12)
    for image in (x, x.to(memory_format=torch.channels_last), x[:, :, ::2, 1:]):
        with untouched(model):
            shown = effect(model, image, formats=["int8"], of=[ACTIVATIONS])
        assert all(0 < row["change_int8"] < 0.02 for row in shown.rows)


def test_a_lone_layer_shares_that_are_nearly_all_and_layers_that_are_not_called() -> None:
    torch.manual_seed(0)
    lone = effect(nn.Linear(8, 4), torch.randn(4, 8), formats=["int8"])
    assert str(lone.totals["verdict"]).endswith(", the model rounded)") and "row (model)" not in str(lone.meta["notes"])
    nearly = Effects(whole={"int4": {"change": 0.2, "top": 0.9999}})
    outputs = Outputs({"": torch.ones(2, 3)})
    assert "the top class stays in 99.9% of places" in verdict(nearly, outputs, [Layer("0", "Linear")])
    model = nn.Sequential(nn.Linear(8, 8), nn.Identity())
    model[1].aside = nn.Linear(8, 2)
    for of, rest in ((WEIGHTS, ACTIVATIONS), "so only its weights are"), ((ACTIVATIONS,), "so nothing of it is"):
        [item] = effect(model, torch.randn(4, 8), of=of).skipped
        assert (item.fqn, item.reason) == ("1.aside", f"not seen to be called, {rest} rounded")


class Writes(nn.Linear):
    """Writes into what it receives."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(3.0))


class Beside(nn.Module):
    """Reads what its layer receives after the layer has run."""

    def __init__(self, kind: type[nn.Linear]) -> None:
        super().__init__()
        self.layer = kind(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 1
        out: Tensor = self.layer(x)
        return out + x


def test_a_layer_that_writes_into_its_input_has_only_its_weights_rounded() -> None:
    """The effect equals a weight rounded by hand; the input that others read stays as the layer leaves it."""
    torch.manual_seed(0)
    model, x = Beside(Writes), torch.randn(16, 8)
    with untouched(model):
        shown = effect(model, x)
    [row] = shown.rows
    by_hand, plain = copy.deepcopy(model), model(x.clone())
    by_hand.layer.weight.data = by_hand.layer.weight.data.bfloat16().float()
    expected = (by_hand(x.clone()) - plain).norm() / plain.norm()
    assert row["change_bfloat16"] == pytest.approx(expected.item(), rel=1e-4) and row["change_bfloat16"] < 0.01
    [item] = shown.skipped
    reason = "it changes what it receives in place, so only its weights are rounded"
    assert (item.fqn, item.reason) == ("layer", reason)
    assert not effect(Beside(nn.Linear), x).skipped


def test_a_model_with_weights_itself_and_one_that_changes_from_run_to_run() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.linear, self.runs = nn.Parameter(torch.randn(8, 8)), nn.Linear(8, 2), 0.0

        def forward(self, x: Tensor) -> Tensor:
            self.runs += self.step
            out: Tensor = self.linear(x @ self.table) + self.runs
            return out

    torch.manual_seed(0)
    model, x = Own(), torch.randn(4, 8)
    model.step = 0.0
    shown = effect(model, x, formats=["int4"])
    assert "the model's own weights (" in str(shown.totals["verdict"])
    model.step = 1.0
    text = str(effect(model, x, formats=["int4"]).totals["verdict"])
    assert text.startswith("A second run of the unchanged model changes the output by ")
    assert " counts as agreement. The output " in text


def test_a_parametrized_layer_is_one_layer() -> None:
    torch.manual_seed(0)
    plain, x = nn.Sequential(nn.Conv1d(4, 8, 3), nn.Linear(4, 2)), torch.randn(2, 4, 6)
    model = copy.deepcopy(plain)
    nn.utils.parametrize.register_parametrization(model[0], "weight", nn.Identity())
    with untouched(model):
        rows = effect(model, x, formats=["int4"]).rows
    expected = effect(plain, x, formats=["int4"]).rows
    assert {row.fqn: row["change_int4"] for row in rows} == {row.fqn: row["change_int4"] for row in expected}
    assert {row["type"] for row in rows} == {"Sequential", "ParametrizedConv1d", "Linear"}


def test_an_expanded_weight_is_rounded_and_gets_its_memory_back() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(3, 8)
    model[0].weight = nn.Parameter(torch.randn(4, 1).expand(4, 8))
    memory = model[0].weight.data_ptr()
    with untouched(model):
        [row] = effect(model, x, of=[WEIGHTS]).rows
    assert 0 < row["change_bfloat16"] < 0.01
    assert model[0].weight.stride() == (1, 0) and model[0].weight.data_ptr() == memory


def test_infinite_inputs_that_need_gradients_stay_infinite() -> None:
    x = torch.tensor([[1.0, math.inf, -2.0]], requires_grad=True)
    y = rounded_input(x, nn.Linear(3, 1), "bfloat16")
    y[0, 0].backward()
    assert torch.equal(y, x) and torch.equal(x.grad, torch.tensor([[1.0, 0.0, 0.0]]))


def test_layers_are_ranked_in_the_worst_format_that_was_reached() -> None:
    whole = {"nvfp4": {"change": 0.2, "top": None}, "mxfp4": {"change": 0.3, "top": None}}
    alone = {"0": {"nvfp4": {"change": 0.1, "top": None}}, "1": {"nvfp4": {"change": 0.15, "top": None}}}
    assert Effects(whole=whole, alone=alone).ranked() == ["1", "0"]
    assert "; nvfp4 costs most in layer 1 (0.1500)" in most_sensitive(Effects(whole=whole, alone=alone))
