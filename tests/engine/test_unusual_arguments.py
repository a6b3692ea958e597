"""What programs give `capture`, `capture_recipe`, `check` and `report`: several inputs, mistakes, old spellings."""

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
from hookcli.table import Report

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


class Two(nn.Module):
    """Takes two inputs, one of them by keyword if it likes, and an argument with the name of a setting."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, a: torch.Tensor, b: torch.Tensor, time: float = 1.0, *, scale: Any = None) -> torch.Tensor:
        out: torch.Tensor = self.fc(a + b) * time
        return out if scale is None else out * scale["by"]


A, B = torch.randn(4, 3), torch.randn(4, 3)
FORMS: dict[str, tuple[tuple[Any, ...], dict[str, Any], float]] = {
    "by position": ((A, B), {}, 1),
    "one by keyword": ((A,), {"b": B}, 1),
    "by keyword": ((), {"a": A, "b": B}, 1),
    "a container": ((A, B), {"scale": {"by": 3.0}}, 3),
    "a tuple": (((A, B),), {}, 1),
    "a mapping, with the name of a setting": (({"a": A, "b": B, "time": 2.0},), {}, 2),
    "as the parameter was called": ((), {"inputs": (A, B)}, 1),
}


@pytest.mark.parametrize("form", FORMS)
def test_inputs_are_given_as_in_a_call(form: str) -> None:
    model = Two().eval()
    inputs, keywords, factor = FORMS[form]
    with torch.no_grad():
        expected = (model.fc(A + B) * factor).double().norm().item()
    report = hookcli.capture(model, *inputs, probes="activations", **keywords)
    assert report[""]["l2"] == pytest.approx(expected, rel=1e-6)
    checked = hookcli.check(model, *inputs, select=["HK001", "HK026"], split_batch=True, **keywords)
    assert not checked.findings and not [item for item in checked.skipped if "fail" in item.reason]
    page = hookcli.report(model, *inputs, **keywords)
    assert page.error is None and page.reports[1][""]["output_shape"] == [4, 2]


def test_one_probe_gives_one_report_and_several_give_a_list() -> None:
    model = Two()
    shapes = hookcli.capture(model, A, B)
    assert isinstance(shapes, Report) and shapes.probe == "shapes"
    assert isinstance(hookcli.capture(model, A, B, probes=ShapesProbe), Report)
    assert [r.probe for r in hookcli.capture(model, A, B, probes=("shapes", "activations"))] == [
        "shapes",
        "activations",
    ]
    assert isinstance(hookcli.capture(model, A, B, probes=["shapes"]), list)


@pytest.mark.parametrize("probes", ["shapes", ["shapes"], ShapesProbe, ShapesProbe(), ("shapes",)])
def test_the_old_forms_work_as_before(probes: Any) -> None:
    model = nn.Linear(3, 3)
    (report,) = hookcli.capture(model, X, probes)
    assert report.probe == "shapes" and hookcli.capture(model, X, "shapes")[0].probe == "shapes"
    assert [r.probe for r in hookcli.capture(model, X, ["shapes", "activations"])] == ["shapes", "activations"]


def test_a_list_of_texts_is_an_input_where_probes_are_named() -> None:
    class Reads(nn.Module):
        def forward(self, x: torch.Tensor, words: list[str]) -> torch.Tensor:
            return x * len(words)

    report = hookcli.capture(Reads(), torch.ones(1), ["a", "b", "c"], probes="activations")
    assert report.row("")["mean"] == 3


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ("los", r"capture: unknown argument 'los'; did you mean loss"),
        ("scales", r"unknown argument 'scales'; did you mean scale"),
        ("qqq", r"unknown argument 'qqq'; neither a setting nor an argument of Two.forward"),
    ],
)
def test_a_misspelt_keyword_of_capture_is_an_error(keyword: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        hookcli.capture(Two(), A, B, **{keyword: 1})


def test_a_part_may_list_its_parameters_in_its_own_way() -> None:
    part = Own()
    part.scale.register_hook(lambda grad: None)
    assert [hook.fqn for hook in existing_hooks(part)] == ["scale"]
    assert hookcli.capture(nn.Sequential(part), X, ["shapes", "activations"])[0].meta["complete"]


def test_a_misspelt_setting_of_check_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"ignored.*did you mean ignore"):
        hookcli.check(nn.Linear(3, 3), X, ignored=["HK001"])


def test_info_adds_to_the_description_of_a_run() -> None:
    meta = hookcli.capture(nn.Linear(3, 3), X, info={"seed": 7})[0].meta
    assert meta["seed"] == 7 and meta["input"] == "2x3" and meta["torch"] == torch.__version__


def test_probes_may_come_from_a_generator() -> None:
    reports = hookcli.capture(nn.Linear(3, 3), X, (name for name in ("shapes", "activations")))
    assert [report.probe for report in reports] == ["shapes", "activations"]


def test_capture_recipe_leaves_the_generators_as_they_were() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    hookcli.capture_recipe(find_recipe("squeezenet1_1"), ["activations"])
    assert torch.equal(before, torch.get_rng_state())


def test_a_probe_that_is_made_already_serves_one_run_only() -> None:
    with pytest.raises(UsageError, match="by name or class"):
        hookcli.capture_recipe(find_recipe("squeezenet1_1"), [ShapesProbe()])  # type: ignore[list-item]
