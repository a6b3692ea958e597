"""What programs give `capture`, `capture_recipe` and `check` by mistake, or in an unusual way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hookcli
from hookcli.errors import UsageError
from hookcli.hooks.existing import existing_hooks
from hookcli.probes.shapes import ShapesProbe
from hookcli.sources.finding import find_recipe

X = torch.ones(2, 3)


class Own(nn.Module):
    """Overrides methods that list parameters, with signatures of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale

    def parameters(self) -> Any:
        return [self.scale]

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Any:
        return [("scale", self.scale)]


def test_a_part_may_list_its_parameters_in_its_own_way() -> None:
    part = Own()
    part.scale.register_hook(lambda grad: None)
    assert [hook.fqn for hook in existing_hooks(part)] == ["scale"]
    assert hookcli.capture(nn.Sequential(part), X, ["shapes", "activations"])[0].meta["complete"]


def test_a_misspelt_setting_of_check_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"ignored.*did you mean ignore"):
        hookcli.check(nn.Linear(3, 3), X, ignored=["HK001"])  # type: ignore[call-arg]


def test_info_adds_to_the_description_of_a_run() -> None:
    meta = hookcli.capture(nn.Linear(3, 3), X, info={"seed": 7})[0].meta
    assert meta["seed"] == 7 and meta["input"] == "2x3" and meta["torch"] == torch.__version__


def test_probes_may_come_from_a_generator() -> None:
    reports = hookcli.capture(nn.Linear(3, 3), X, (name for name in ("shapes", "activations")))  # type: ignore[arg-type]
    assert [report.probe for report in reports] == ["shapes", "activations"]


def test_capture_recipe_leaves_the_generators_as_they_were() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    hookcli.capture_recipe(find_recipe("squeezenet1_1"), ["activations"])
    assert torch.equal(before, torch.get_rng_state())


def test_a_probe_that_is_made_already_serves_one_run_only() -> None:
    with pytest.raises(UsageError, match="by name or class"):
        hookcli.capture_recipe(find_recipe("squeezenet1_1"), [ShapesProbe()])  # type: ignore[list-item]
