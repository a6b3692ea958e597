"""Parameters and MACs against torchvision's published numbers, and against a hand-computed model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchvision
from support import Hand, Nested, Shared, swept, untouched
from torch import nn
from torchvision import ops

from hookcli.engine.capture import capture
from hookcli.engine.prepare import prepare_run
from hookcli.engine.setting import META, Setting
from hookcli.errors import ModelError
from hookcli.sources.base import InputSpec, Request
from hookcli.sources.catalog import entries
from hookcli.sources.torchvision import TorchvisionSource
from hookcli.table import Report


def published(name: str, member: str) -> dict[str, Any]:
    meta: dict[str, Any] = torchvision.models.get_model_weights(name.removeprefix("quantized_"))[member].meta
    return meta


# Detectors' published costs depend on what their weights detect. Of weights with the same figures one is enough.
PUBLISHED = list(
    {
        (name, published(name, member)["_ops"], published(name, member)["num_params"]): (name, member)
        for name, entry in entries().items()
        if entry.kind != "detection"
        for member in torchvision.models.get_model_weights(name.removeprefix("quantized_")).__members__
        if member != "DEFAULT"
    }.values()
)


# In kinds of layers and in how they're called.
LIKE_OTHERS = ("raft", "3d", "mvit", "fcn", "deeplab", "shufflenet", "mnasnet", "mobilenet_v2", "regnet")
LIKE_OTHERS += ("quantized_googlenet", "quantized_inception", "quantized_mobilenet", "quantized_shufflenet", "r2plus1d")
LIKE_OTHERS += ("densenet", "swin_t", "inception", "efficientnet", "convnext", "googlenet", "lraspp")


def sampled() -> list[Any]:
    """All of them; those are for sweeps that aren't the least costly of their file of torchvision's, or like others."""
    least: dict[str, tuple[str, str]] = {}
    for name, member in sorted(PUBLISHED, key=lambda one: published(*one)["_ops"]):
        if name not in ("raft_small", "maxvit_t", "deeplabv3_mobilenet_v3_large", "mvit_v2_s"):
            least.setdefault(torchvision.models.get_model_builder(name).__module__, (name, member))
    plain = [one for one in least.values() if not any(word in one[0] for word in LIKE_OTHERS)]
    return [one if one in plain else swept(*one) for one in PUBLISHED]


@pytest.mark.parametrize(("name", "weights"), sampled(), ids=lambda value: value)
def test_published_numbers(name: str, weights: str) -> None:
    recipe = TorchvisionSource().recipe(Request(name, {}, weights))
    # RAFT's cost was published for 512x512.
    inputs = (InputSpec((1, 3, 512, 512)),) if name.startswith("raft") else ()
    prepared = prepare_run(recipe, Setting(inputs=inputs, device=META))
    report = capture(prepared.model, prepared.inputs, ["shapes"])[0]
    figures = published(name, weights)
    assert report.totals["macs"] / 1e9 == pytest.approx(figures["_ops"], abs=0.001)
    if name not in (
        "inception_v3",
        "quantized_inception_v3",
    ):  # published with the auxiliary head that its weights drop when they are loaded
        assert report.totals["params"] == figures["num_params"]
    assert not [item for item in report.skipped if "known cost" in item.reason]
    assert_invariants(report)


def assert_invariants(report: Report) -> None:
    """What runs inside a call costs no more than the call, and the model's row is the total."""
    root = next(row for row in report.rows if not row.fqn)
    assert (root["params"], root["macs"]) == (report.totals["params"], report.totals["macs"])
    top = [row for row in report.rows if row["depth"] == 1 and row["macs"] is not None]
    assert sum(row["macs"] for row in top) <= root["macs"]
    assert [row["index"] for row in report.rows] == sorted(row["index"] for row in report.rows)


def test_a_model_computed_by_hand() -> None:
    model = Hand()
    with untouched(model):
        report = capture(model, torch.ones(5, 2), ["shapes"])[0]
    rows = {row.fqn: row for row in report.rows}
    # 5 x 2 x 2 and 5 x 2 x 1 multiply-accumulates; 2 x 2 + 2 and 2 parameters
    assert [(r.fqn, r["params"], r["macs"]) for r in report.rows] == [
        ("", 8, 30), ("first", 6, 20), ("relu", 0, 0), ("out", 2, 10),
    ]  # fmt: skip
    assert rows["first"]["input_shape"] == [5, 2] and rows["out"]["output_shape"] == [5, 1]
    sizes = {"params": 8, "trainable": 8, "param_bytes": 32, "macs": 30}
    assert {key: report.totals[key] for key in sizes} == sizes


def test_tied_parameters_count_once_and_each_call_has_a_row() -> None:
    model = Shared()
    with untouched(model):
        report = capture(model, torch.tensor([[1, 2, 3]]), ["shapes"])[0]
    assert report.totals["params"] == sum(p.numel() for p in model.parameters()) == 7 * 5 + 30
    calls = [row for row in report.rows if row.fqn == "mix"]
    assert [(row["call"], row["macs"]) for row in calls] == [(0, 75), (1, 75), (2, 75)]


def test_nested_outputs_have_a_row_per_tensor_and_sums_stay_right() -> None:
    report = capture(Nested("named"), torch.ones(2, 3), ["shapes"])[0]
    root = [row for row in report.rows if not row.fqn]
    assert [(row["path"], row["params"]) for row in root] == [(".main", 16), (".aux", None)]
    assert sum(row["macs"] or 0 for row in report.rows if row.fqn) == report.totals["macs"] == 2 * 12


def test_frozen_parameters_are_not_trainable() -> None:
    model = Hand().requires_grad_(False)
    assert capture(model, torch.ones(1, 2), ["shapes"])[0].totals["trainable"] == 0


def test_a_frozen_model_takes_no_memory_of_training() -> None:
    """Unless the input needs gradients: then it keeps what they are computed from."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid()).requires_grad_(False)
    report = capture(model, torch.ones(1, 2), ["shapes"])[0]
    assert not {"grad_bytes", "kept_bytes"} & report.totals.keys() and {row["kept"] for row in report.rows} == {None}
    assert "to train" not in str(report)
    totals = capture(model, torch.ones(1, 2, requires_grad=True), ["shapes"])[0].totals
    assert totals["kept_bytes"] == 12 and "grad_bytes" not in totals  # what the sigmoid returned, and nothing else


def test_attention_is_counted_whole_and_its_bypassed_parts_are_named() -> None:
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.ones(1, 4, 8)
    with untouched(model):
        report = capture(model, (x, x, x), ["shapes"])[0]
    # projections of q, k, v and output: 4 x 4 x 8 x 8; scores and values: 2 x 4 x 4 x 8
    assert report.totals["macs"] == 4 * 4 * 64 + 2 * 4 * 4 * 8
    assert [(s.fqn, "MultiheadAttention uses its weights" in s.reason) for s in report.skipped] == [("out_proj", True)]


def test_an_operator_without_a_formula_is_said() -> None:
    @torch.library.custom_op("unheard::of", mutates_args=())
    def unheard_of(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return unheard_of(x)

    report = capture(Net(), torch.rand(3, 5), ["shapes"])[0]
    assert any("unheard::of" in item.reason for item in report.skipped)


def test_operators_of_torchvision_pool_regions_and_select_boxes_for_nothing_and_convolve_for_something() -> None:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = ops.DeformConv2d(4, 6, 3, groups=2)

        def forward(self, x: torch.Tensor, boxes: torch.Tensor) -> Any:
            kept = boxes[ops.nms(boxes, boxes[:, 0], 0.5)]
            pools = (ops.roi_align, ops.roi_pool, ops.ps_roi_align, ops.ps_roi_pool)
            pooled = [pool(x, [kept], 2) for pool in pools]
            return pooled, self.conv(x, torch.zeros(1, 18, 6, 6))

    boxes = torch.tensor([[0.0, 0, 4, 4], [3.0, 3, 7, 7]])
    report = capture(Detector(), (torch.rand(1, 4, 8, 8), boxes), ["shapes"])[0]
    assert not report.skipped
    assert report.totals["macs"] == 6 * 6 * 6 * 2 * 9  # a value of the output is a sum over 2 channels of 3x3


def test_lazy_modules_are_measured_once_they_know_their_size() -> None:
    report = capture(nn.LazyLinear(3), torch.ones(2, 5), ["shapes"])[0]
    assert report.totals["params"] == 18


@pytest.mark.parametrize("broken", [nn.Linear, nn.Identity])
def test_the_costs_of_a_run_that_failed_are_those_until_then(broken: type[nn.Module]) -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = broken(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.part(x)
            raise ValueError("not now")

    with pytest.raises(ModelError) as caught:
        capture(Fails(), torch.ones(3, 4), ["shapes"])
    [report] = caught.value.reports
    assert report.totals["macs"] == (3 * 4 * 2 if broken is nn.Linear else 0)


class Ties(nn.Module):
    """Ties of each kind: a parameter of two layers, a layer of two names, and one in a list as well."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        if kind == "weight":
            self.second.weight = self.first.weight
        elif kind == "both":
            self.second.weight, self.second.bias = self.first.weight, self.first.bias
        elif kind == "layer":
            self.second = self.first
        elif kind == "list":
            self.layers = nn.ModuleList([self.first])
        elif kind == "within":
            self.block = nn.Sequential(nn.Linear(4, 4), self.second)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


@pytest.mark.parametrize(
    ("kind", "says", "params"),
    [
        ("weight", "second.weight (tied with first.weight)", 24),
        ("both", "second.weight (tied with first.weight), second.bias (tied with first.bias)", 20),
        ("layer", "second (tied with first)", 20),
        ("list", "layers.0 (tied with first)", 40),
        ("within", "block.1 (tied with second)", 60),
        ("none", None, 40),
    ],
)
def test_shared_weights_are_named(kind: str, says: str | None, params: int) -> None:
    report = capture(Ties(kind), torch.ones(2, 4))
    notes = [note for note in report.meta.get("notes", ()) if "tied" in note]
    assert notes == ([f"counted once in the totals: {says}"] if says else [])
    assert report.totals["params"] == params
    assert report.to_dict()["meta"].get("notes", []) == notes


def test_a_parameter_of_no_value_is_no_tie() -> None:
    report = capture(nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)), torch.ones(1, 2))
    assert "notes" not in report.meta
