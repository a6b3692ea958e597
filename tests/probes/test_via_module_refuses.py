"""`grads --via module`: what these hooks do not see, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torchvision
from probes.two_ways import Of, assert_same, both, by_key
from support import Hand, Nested, assert_stats, float64_stats, gradients, untouched
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookcli import capture
from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.errors import ModelError, UsageError
from hookcli.probes.grads import GradsProbe
from hookcli.table import Report


def reasons(report: Report) -> dict[tuple[str, str], str]:
    return {(item.fqn, item.path): item.reason for item in report.skipped}


@pytest.mark.parametrize("what", ["dict", "tuple", "dataclass"])
def test_outputs_that_full_backward_hooks_do_not_see_are_said(what: str) -> None:
    tensor, module = both(Nested(what), torch.ones(1, 3), "outputs")
    # The body; of a tuple, also the tensor that stands in it, but not those in the list beside it.
    differing = {("", 0, 0, "[0]")} if what == "tuple" else set()
    assert assert_same(tensor, module, differing=differing) == (2 if what == "tuple" else 1)
    name = {"dict": "OrderedDict", "tuple": "tuple", "dataclass": "Box"}[what]
    path = {"dict": '["out"]', "tuple": "[1][0]", "dataclass": ".hidden"}[what]
    expected = f"full backward hooks see no {name}; without --via module it is seen"
    assert expected in reasons(module)["", path]


def test_a_probe_that_has_nothing_to_offer_instead_takes_part_again() -> None:
    """A trace goes without the hooks that PyTorch refuses; gradients, beside it, begin anew."""
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True)), torch.randn(2, 3)
    trace, grads = capture(model, x, [TraceProbe(), GradsProbe()])
    [alone] = capture(model, x, [GradsProbe()])
    assert {row["kind"] for row in trace.rows}.isdisjoint({"full_backward", "full_backward_pre"}) and trace.skipped
    assert [(row.fqn, row.stats) for row in grads.rows] == [(row.fqn, row.stats) for row in alone.rows] != []


def test_a_named_tuple_of_tensors_is_seen_with_its_names() -> None:
    tensor, module = both(Nested("named"), torch.ones(1, 3), "outputs")
    assert assert_same(tensor, module, differing={("", 0, 0, ".main")}) == 3
    assert {row["path"] for row in module.rows if row.fqn == ""} == {".main", ".aux"}


def test_an_output_that_another_is_made_from_has_its_whole_gradient_and_the_other_way_says_what_it_leaves_out() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> Any:
            h = torch.tanh(x)
            return h, h * 2

    tensor, module = both(Both(), torch.ones(3, requires_grad=True), "outputs")
    x = torch.ones(3, requires_grad=True)
    h = torch.tanh(x)
    (expected,) = torch.autograd.grad(h.sum() + (h * 2).sum(), h)
    assert_stats(by_key(tensor)["", 0, 0, "[0]"].stats, float64_stats(expected))
    assert_stats(by_key(module)["", 0, 0, "[0]"].stats, float64_stats(torch.ones(3)))
    assert any("--via module leaves out" in note for note in module.meta["notes"])
    assert "notes" not in tensor.meta


def test_outputs_that_do_not_depend_on_each_other_have_no_note() -> None:
    class Apart(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return torch.tanh(x), x * 2

    tensor, module = both(Apart(), torch.ones(3, requires_grad=True), "outputs")
    assert assert_same(tensor, module) == 2
    assert "notes" not in module.meta


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.nothing = Inner(), Constant()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x, torch.ones(2), other=2 * x, parts=[3 * x]) + self.nothing()
        return y


class Inner(nn.Module):
    def forward(self, x: Tensor, mask: Tensor, *, other: Tensor, parts: list[Tensor]) -> Tensor:
        return x * mask + other + parts[0]


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self) -> Tensor:
        return self.weight * 2


def test_arguments_that_full_backward_hooks_do_not_see_are_said() -> None:
    tensor, module = both(Keywords(), torch.ones(2), "inputs")
    assert assert_same(tensor, module) == 2
    said = reasons(module)
    assert "full backward hooks see no argument by keyword" in said["inner", '["other"]']
    assert "without --via module it is seen" in said["inner", '["parts"][0]']
    assert "does not require grad" in said["inner", "[1]"]
    assert "received no tensor that full backward hooks can see" in said["nothing", ""]
    assert "--of outputs" in said["nothing", ""]
    outputs = capture(Keywords(), torch.ones(2), [GradsProbe("outputs", "module")])[0]
    assert "nothing" in {row.fqn for row in outputs.rows}


@pytest.mark.sweep
def test_no_warning_of_pytorch_reaches_the_user() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model, x in ((Keywords(), torch.ones(2)), (Nested("dict"), torch.ones(1, 3)), (Hand(), torch.ones(1, 2))):
            for of in ("outputs", "inputs"):
                capture(model, x, [GradsProbe(of, "module")])  # type: ignore[arg-type]


def test_a_selection_narrows_the_hooks() -> None:
    [report] = capture(Hand(), torch.ones(1, 2), [GradsProbe("outputs", "module")], select=lambda n, m: n == "relu")
    assert [row.fqn for row in report.rows] == ["relu"]


@pytest.mark.sweep
@pytest.mark.parametrize("of", ["outputs", "inputs"])
def test_what_is_changed_in_place_is_refused_with_a_reason_and_the_alternative(of: Of) -> None:
    model, x = torchvision.models.resnet18(weights=None), torch.randn(2, 3, 64, 64)
    with untouched(model), pytest.raises(ModelError) as caught:
        capture(model, x, [GradsProbe(of, "module")])
    assert str(caught.value).startswith("relu (ReLU) failed on input 2x64x32x32: it changes in place")
    assert "without --via module" in str(caught.value)


@pytest.mark.parametrize("of", ["outputs", "inputs"])
def test_a_model_with_a_legacy_hook_is_refused_by_name(of: Of) -> None:
    model = Hand()
    handle = model.relu.register_backward_hook(lambda m, i, o: None)
    for _ in ("with the hook", "with the flag that it leaves"):
        with untouched(model), pytest.raises(UsageError) as caught:
            capture(model, torch.ones(1, 2), [GradsProbe(of, "module")])
        assert str(caught.value).startswith("relu (ReLU) has, or had, a hook of the deprecated")
        assert "`hookcli hooks` lists it" in str(caught.value)
        handle.remove()


@pytest.mark.parametrize("flag", [None, True])
def test_the_flag_that_pytorch_sets_is_put_back(flag: bool | None) -> None:
    model = Hand()
    if flag:
        model.relu.register_full_backward_hook(lambda m, i, o: None)
    before = [m._is_full_backward_hook for m in model.modules()]
    assert before == [None, None, flag, None]
    for of in ("outputs", "inputs"):
        with untouched(model):
            capture(model, torch.ones(1, 2), [GradsProbe(of, "module")])  # type: ignore[arg-type]
        assert [m._is_full_backward_hook for m in model.modules()] == before
    if flag is None:
        model.relu.register_backward_hook(lambda m, i, o: None)  # as PyTorch would refuse with the flag on


@pytest.mark.sweep
def test_the_observed_run_is_the_same_bit_for_bit() -> None:
    torch.manual_seed(0)
    model = torchvision.models.get_model("quantized_resnet18", weights=None, quantize=False).train()
    x, found = torch.randn(2, 3, 64, 64), []
    for via in (None, "module"):
        probe = GradsProbe("inputs", "module") if via else GradsProbe("parameters")
        with gradients(model) as grads:
            capture(model, x, [probe])
        found.append(grads)
    assert len(found[0]) == 62 and found[0].keys() == found[1].keys()
    for key, grad in found[0].items():
        torch.testing.assert_close(grad, found[1][key], rtol=1e-4, atol=1e-5)


EDITED: list[tuple[Of, str]] = [("outputs", "grad_output"), ("inputs", "grad_input")]


@pytest.mark.parametrize(("of", "what"), EDITED)
def test_an_edit_that_these_hooks_would_not_show_is_refused(of: Of, what: str) -> None:
    """They fire before the edit: the figures would be those without it."""
    model = Hand()
    with untouched(model), pytest.raises(UsageError) as caught:
        capture(model, torch.ones(1, 2), [GradsProbe(of, "module")], edits=[f"relu:{what}=scale(2)"])
    assert "relu" in str(caught.value) and "without --via module" in str(caught.value)


@pytest.mark.parametrize(
    "edit", ["first:output=scale(2)", "relu:input=noise(1)", "first.weight:grad=scale(2)", "out:grad_{}=scale(2)"]
)
@pytest.mark.parametrize(("of", "what"), EDITED)
def test_other_edits_show_in_both_ways(of: Of, what: str, edit: str) -> None:
    edit = edit.format("input" if of == "outputs" else "output")
    model = Hand().double()
    tensor, module = both(model, torch.ones(1, 2, dtype=torch.float64), of, edits=[edit])
    assert assert_same(tensor, module) == 4


class Handing(nn.Module):
    """Modules that hand on what they receive, in a region that runs again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.body = nn.Linear(4, 4), nn.Sequential(nn.Identity(), nn.Tanh(), nn.Dropout(0.0))
        self.keep = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.body, self.first(x), use_reentrant=self.reentrant)
        return self.keep(y) * 2


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("probes", [["trace"], ["activations", "trace"], [GradsProbe("outputs", "module")]])
def test_what_hands_tensors_on_is_left_out_whatever_else_looks(reentrant: bool, probes: list[Any]) -> None:
    torch.manual_seed(0)
    model, x = Handing(reentrant).eval(), torch.randn(2, 4)
    with untouched(model):
        *_, report = capture(model, x, probes)
    left = {item.fqn for item in report.skipped if "one tensor in several places" in item.reason}
    assert left == {"body.0", "body.2", "keep"}
    assert {row.fqn for row in report.rows} >= {"", "first"}
