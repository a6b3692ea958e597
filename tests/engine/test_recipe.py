"""Runs from recipes in a program: on the meta device where that will do, with the fallbacks that the commands have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import Hand
from torch import Tensor, nn

import hookcli
from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.engine.setting import META, Setting
from hookcli.errors import ModelError
from hookcli.sources.base import InputSpec, Recipe
from hookcli.sources.finding import find_recipe


class Branches(nn.Module):
    """Reads a value to choose what it computes, which the meta device has not."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if x.sum().item() else x


class Diverges(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("for another reason")


class PassesOn(nn.Module):
    """Returns one tensor in two places: full backward hooks would make two of it."""

    def __init__(self) -> None:
        super().__init__()
        self.pair, self.fc = Pair(), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.pair(self.fc(x))
        return a + b if a is b else a * 0


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def recipe(build: Any) -> Recipe:
    return Recipe("net", build, inputs=(InputSpec((1, 2)),))


@pytest.mark.parametrize("probes", ["shapes", ["shapes", "shapes"]])
def test_shapes_need_no_values(probes: Any) -> None:
    for report in hookcli.capture_recipe(recipe(Hand), probes):
        assert report.meta["device"] == "meta" and "not_on_meta" not in report.meta


def test_a_model_that_reads_values_runs_for_real() -> None:
    [report] = hookcli.capture_recipe(recipe(Branches), "shapes")
    assert report.meta["device"] == "cpu" and report.meta["complete"]
    assert "meta tensors" in report.meta["not_on_meta"]
    assert [row.fqn for row in report.rows] == ["", "fc"]


class Experts(nn.Module):
    """Multiplies in float32 by an operator whose kernel for meta takes bfloat16 alone, before torch 2.15."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        ends = torch.tensor([2, 4], dtype=torch.int32, device=x.device)
        return nn.functional.grouped_mm(x, self.weight, offs=ends)


def test_an_operator_that_meta_has_for_fewer_dtypes_runs_for_real() -> None:
    [report] = hookcli.capture_recipe(Recipe("net", Experts, inputs=(InputSpec((4, 8)),)), "shapes")
    assert report.meta["complete"] and report.rows[0]["output_shape"] == [4, 8]
    assert report.meta["device"] == "meta" or "float32" in report.meta["not_on_meta"]


def test_a_model_that_fails_for_another_reason_is_not_run_again() -> None:
    built: list[nn.Module] = []
    with pytest.raises(ModelError, match="for another reason") as caught:
        hookcli.capture_recipe(recipe(lambda: built.append(Diverges()) or built[0]))
    assert len(built) == 1 and caught.value.reports[0].meta["device"] == "meta"


def test_values_are_those_of_a_real_run() -> None:
    [shapes, activations] = hookcli.capture_recipe(recipe(Hand), ["shapes", "activations"], Setting(fill="ones"))
    assert shapes.meta["device"] == activations.meta["device"] == "cpu"
    assert activations.meta["fill"] == "ones" and activations.rows[0].stats is not None


def test_a_device_that_was_chosen_stays_so() -> None:
    with pytest.raises(ModelError, match="meta"):
        hookcli.capture_recipe(recipe(Branches), "shapes", Setting(device=META))


def test_a_run_under_fewer_hooks() -> None:
    [report] = hookcli.capture_recipe(recipe(PassesOn), TraceProbe)
    assert report.meta["complete"]
    reasons = {item.fqn: item.reason for item in report.skipped if "one tensor" in item.reason}
    assert reasons.keys() == {"pair"}
    torch.manual_seed(0)
    model = PassesOn()
    x = torch.ones(1, 2)
    assert (
        hookcli.capture(model, x, "activations")[0].rows[0].stats
        == hookcli.capture(model, x, ["activations", TraceProbe()])[0].rows[0].stats
    )


def test_specs_of_the_command_line() -> None:
    found = find_recipe("resnet18", {"num_classes": 10})
    [report] = hookcli.capture_recipe(found, "shapes", Setting(batch=4))
    assert list(report.rows[0]["output_shape"]) == [4, 10]
    assert report.model == "resnet18" and report.meta["kind"] == "classification"
