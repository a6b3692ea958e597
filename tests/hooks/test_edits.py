"""Edits by themselves, and from Python: what each does is held against hooks written by hand, in float64."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from support import Box, Hand, Nested, Shared, assert_stats, equal, float64_stats, hooks_on, untouched
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookcli import capture, watch
from hookcli.errors import ModelError, UsageError
from hookcli.hooks.edits.base import Edit, check_edits, parse_edit
from hookcli.probes.grads import GradsProbe

X = torch.tensor([[-2.0, -0.5, 0.0, 0.25, 3.0]], dtype=torch.float64)
OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "zero": lambda x: x * 0,
    "ones": lambda x: x * 0 + 1,
    "scale(2)": lambda x: 2 * x,
    "scale(factor=-0.5)": lambda x: x / -2,
    "clamp(-1,1)": lambda x: torch.where(x < -1, -1, torch.where(x > 1, 1, x)),
    "clamp( min = 0 )": lambda x: torch.where(x > 0, x, 0),
    "clamp(None, 0.1)": lambda x: torch.where(x > 0.1, 0.1, x),
    "square": lambda x: x**2,
    "math_of_tests:halved": lambda x: x / 2,
    "torch:neg": lambda x: -x,
}


OWN = """
number = 3

def halved(x):
    return x / 2

def plus(x, much, *, sign=1):
    return x + sign * much

def shaken(x, std, generator):
    return x + std * generator.initial_seed()
"""


@pytest.fixture(autouse=True)
def own_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_of_tests.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def apply(text: str, x: Tensor, seed: int = 0, *, fqn: str = "layer", call: int = 0, path: str = "") -> Tensor:
    return parse_edit(f"layer:output={text}", seed).at(fqn, call)(path, x)


@pytest.mark.parametrize("op", OPS)
def test_each_operation_does_what_its_name_says(op: str) -> None:
    x = X.clone()
    assert torch.equal(apply(op, x), OPS[op](X))
    assert torch.equal(x, X)


@pytest.mark.parametrize("op", ["zero", "ones"])
def test_zero_and_ones_also_replace_what_is_not_finite(op: str) -> None:
    x = torch.tensor([float("nan"), float("inf"), -1.0])
    assert apply(op, x).tolist() == [1.0 if op == "ones" else 0.0] * 3


@pytest.mark.parametrize(
    ("op", "slope"),
    [
        ("zero", [0, 0, 0]),
        ("ones", [0, 0, 0]),
        ("scale(3)", [3, 3, 3]),
        ("clamp(-1,1)", [0, 1, 0]),
        ("square", [-4, 1, 6]),
    ],
)
def test_gradients_flow_through_an_edit_of_an_activation(op: str, slope: list[float]) -> None:
    x = torch.tensor([-2.0, 0.5, 3.0], requires_grad=True)
    apply(op, x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == slope


def test_arguments_of_ones_own_function_by_position_and_by_name() -> None:
    assert torch.equal(apply("math_of_tests:plus(2, sign=-1)", X), X - 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("op", ["zero", "ones", "scale(2)", "noise(0.1)", "square"])
def test_the_dtype_stays(op: str, dtype: torch.dtype) -> None:
    x = torch.tensor([1.5, -2.0], dtype=dtype)
    y = apply(op, x)
    assert (y.dtype, y.shape) == (dtype, x.shape) and not torch.equal(x, y)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("op", ["zero", "noise(1)", "scale(2)"])
def test_integers_are_left_alone(op: str, dtype: torch.dtype) -> None:
    x = torch.ones(3, dtype=dtype)
    assert apply(op, x) is x


def test_noise_has_its_spread_and_leaves_the_random_state_alone() -> None:
    before, x = torch.get_rng_state(), torch.zeros(200_000, dtype=torch.float64)
    y = apply("noise(0.1)", x)
    assert abs(y.std().item() - 0.1) < 1e-3 and abs(y.mean().item()) < 1e-3
    assert torch.equal(before, torch.get_rng_state())


def test_noise_is_the_same_for_the_same_place_and_seed_and_no_other() -> None:
    x = torch.zeros(8)
    noise = apply("noise(1)", x)
    assert torch.equal(noise, apply("noise(1)", x))
    others: list[dict[str, Any]] = [{"seed": 1}, {"fqn": "other"}, {"call": 1}, {"path": "[1]"}]
    for other in others:
        assert not torch.equal(noise, apply("noise(1)", x, **other)), other


def test_a_generator_by_position_is_given_by_hookcli() -> None:
    assert not torch.equal(apply("math_of_tests:shaken(1)", X), X)
    with pytest.raises(UsageError, match=r"missing a required argument: 'std'; use math_of_tests:shaken\(std\)"):
        apply("math_of_tests:shaken", X)


def test_the_function_gets_a_generator_only_if_it_asks() -> None:
    given: list[Any] = []

    def asks(x: Tensor, generator: torch.Generator) -> Tensor:
        given.append(generator)
        return x + torch.rand(x.shape, generator=generator)

    edit = Edit("mine", "layer", "output", "asks", asks)
    assert torch.equal(edit.at("layer", 0)("", torch.zeros(3)), edit.at("layer", 0)("", torch.zeros(3)))
    assert isinstance(given[0], torch.Generator) and edit.applied == 2


def test_what_an_edit_says_of_itself() -> None:
    edit = parse_edit(" layer4.*:grad_output = clamp(-1, max=1) ", 5)
    assert (edit.pattern, edit.what, edit.op) == ("layer4.*", "grad_output", "clamp(-1, max=1)")
    assert parse_edit("relu : output = zero").pattern == "relu"
    assert (list(edit.arguments), dict(edit.settings), edit.seed) == ([-1], {"max": 1}, 5)
    assert edit.matches("layer4.0") and not edit.matches("layer3.0") and not edit.matches("")


@pytest.mark.parametrize("pattern", ["", "(model)", "*"])
def test_the_model_itself_has_a_name(pattern: str) -> None:
    assert parse_edit(f"{pattern}:output=zero").matches("")


def test_a_pattern_may_hold_what_separates() -> None:
    assert parse_edit("a:b:output=zero").pattern == "a:b"
    assert parse_edit("[ab].weight:grad=zero").matches("b.weight")


MISTAKES = {
    "relu": "give 'PATTERN:WHAT=OP', for example 'layer4.*:output=zero'",
    "relu:output": "give 'PATTERN:WHAT=OP'",
    "relu:output=": "give 'PATTERN:WHAT=OP'",
    "=zero": "give 'PATTERN:WHAT=OP'",
    "": "--edit '': give 'PATTERN:WHAT=OP'",
    "relu:outputs=zero": "unknown place 'outputs'; did you mean output",
    "relu:output=zeros": "unknown operation 'zeros'; did you mean zero? (your own function: pkg.mod:fn)",
    "relu:output=Zero": "unknown operation 'Zero'; did you mean zero?",
    "relu:output=scale": "missing a required argument: 'factor'; use scale(factor)",
    "relu:output=scale(1,2)": "too many positional arguments; use scale(factor)",
    "relu:output=scale(by=2)": "use scale(factor)",
    "relu:output=scale(x)": "(x) must contain plain values, for example clamp(-1,1)",
    "relu:output=scale(2": "'scale(2' is no operation; examples: zero, scale(2), clamp(-1,1), pkg.mod:fn",
    "relu:output=scale(2))": "(2)) must contain plain values",
    "relu:output=scale(*[2])": "must contain plain values",
    "relu:output=scale(**{'factor': 2})": "must contain plain values",
    "relu:output=zero(3)": "use zero, without arguments",
    "relu:output=scale(2)(3)": "(2)(3) must contain plain values",
    "relu:output=scale(2)+(3)": "(2)+(3) must contain plain values",
    "relu:output=noise(0.1, generator=3)": "noise gets its generator from hookcli; seed it with --seed",
    "relu:output=math_of_tests:nix": "unknown name 'nix'",
    "relu:output=math_of_tests:number": "math_of_tests:number is int, not a function from tensor to tensor",
    "relu:output=math_of_tests:plus": "use math_of_tests:plus(much)",
    "relu:output=no_such_module:f": "no module 'no_such_module' to import",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_gets_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_edit(text)
    assert MISTAKES[text] in str(caught.value) and "\n" not in str(caught.value)
    assert f"--edit {text!r}" in str(caught.value)


BAD: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "shape": (lambda x: x[:1], "returned shape 1x2 for a tensor of shape 3x2"),
    "dtype": (lambda x: x.half(), "returned float16 on cpu for a tensor of float32 on cpu"),
    "device": (lambda x: x.to("meta"), "returned float32 on meta for a tensor of float32 on cpu"),
    "none": (lambda x: None, "returned NoneType, not a tensor; return the new tensor"),
    "in place": (lambda x: x.mul_(2), "changes its tensor in place, which the model still uses; return a new tensor"),
    "raises": (lambda x: {}["lost"], "op failed: KeyError: 'lost'"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("what", ["input", "output", "grad_input", "grad_output", "grad"])
def test_what_can_not_take_the_tensors_place_is_named(what: str, name: str) -> None:
    function, expected = BAD[name]
    pattern = "relu" if what != "grad" else "first.bias"
    model = Hand()
    if what == "grad":  # a bias of two elements
        expected = expected.replace("1x2", "1").replace("3x2", "2")
    edit = Edit("mine", pattern, what, "op", function)
    with untouched(model), pytest.raises(UsageError) as caught:
        capture(model, torch.ones(3, 2), ["grads"], edits=[edit])
    assert str(caught.value) == f"--edit 'mine', at {what} of {pattern}: {expected}"
    assert caught.value.reports[0].meta["complete"] is False


# Each kind on a model that can be followed by hand: y = 3 * sum(relu(2x - 1)).


def grads_of(model: nn.Module, x: Tensor, edits: Sequence[str | Edit] = ()) -> dict[str, Tensor]:
    """The gradients of parameters and input under edits, whole, from a backward pass of one's own."""
    x = x.detach().clone().requires_grad_()
    with watch(model, edits=edits):
        model(x).sum().backward()
    assert x.grad is not None
    return {"x": x.grad, **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize(
    ("edit", "output", "x", "first", "out"),
    [
        (None, 12, [6, 6], [[1, 2], [1, 2]], [[1, 3]]),
        ("relu:output=scale(10)", 120, [60, 60], [[10, 20], [10, 20]], [[10, 30]]),
        ("out:input=scale(10)", 120, [60, 60], [[10, 20], [10, 20]], [[10, 30]]),
        ("relu:input=zero", 0, [0, 0], [[0, 0], [0, 0]], [[0, 0]]),
        ("out:output=square", 144, [144, 144], [[24, 48], [24, 48]], [[24, 72]]),
        ("relu:grad_output=scale(10)", 12, [60, 60], [[10, 20], [10, 20]], [[1, 3]]),
        ("relu:grad_input=zero", 12, [0, 0], [[0, 0], [0, 0]], [[1, 3]]),
        ("out:grad_output=scale(2)", 12, [12, 12], [[2, 4], [2, 4]], [[2, 6]]),
        ("out.weight:grad=scale(2)", 12, [6, 6], [[1, 2], [1, 2]], [[2, 6]]),
        ("first.weight:grad=ones", 12, [6, 6], [[1, 1], [1, 1]], [[1, 3]]),
    ],
)
def test_by_hand(
    edit: str | None, output: float, x: list[float], first: list[list[float]], out: list[list[float]]
) -> None:
    """x = [1, 2]: first gives [1, 3], out 12. Gradients: out.weight [1, 3]; relu and first [3, 3], so x 2 * 3 = 6 each.

    The gradient of first.weight is written as a multiple of 3 where it has not been replaced.
    """
    model = Hand().double()
    given = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    edits = [edit] if edit else []
    found = grads_of(copy.deepcopy(model), given, edits)
    assert found["x"].tolist() == [x] and found["out.weight"].tolist() == out
    factor = 1 if edit == "first.weight:grad=ones" else 3
    assert (found["first.weight"] / factor).tolist() == first
    with watch(model, edits=edits):
        assert model(given).item() == output
    assert model(given).item() == 12


@pytest.mark.parametrize("how", ["whole tensors", "statistics"])
def test_doubling_a_gradient_of_1_2_3_gives_2_4_6(how: str) -> None:
    model = nn.Linear(3, 1, bias=False)
    x = torch.tensor([[1.0, 2.0, 3.0]])
    if how == "whole tensors":
        assert grads_of(model, x, ["weight:grad=scale(2)"])["weight"].tolist() == [[2, 4, 6]]
        return
    [row] = capture(model, x, ["grads"], edits=["weight:grad=scale(2)"])[0].rows
    assert row["edited"] == "scale(2)" and model.weight.grad is None
    assert_stats(row.stats, float64_stats(torch.tensor([2.0, 4.0, 6.0])))


ORDERS = (["scale(2)", "square"], ["square", "scale(2)"], ["clamp(-1,1)", "scale(3)"], ["scale(3)", "clamp(-1,1)"])


def by_hand(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda *arguments: function(arguments[-1])


@pytest.mark.parametrize("what", ["input", "output", "grad_output", "grad_input", "grad"])
@pytest.mark.parametrize("ops", ORDERS, ids=" then ".join)
def test_several_on_one_tensor_apply_in_the_order_given(what: str, ops: list[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    place = "2.weight" if what == "grad" else "1"
    found = grads_of(copy.deepcopy(model), x, [f"{place}:{what}={op}" for op in ops])
    other = grads_of(copy.deepcopy(model), x, [f"{place}:{what}={op}" for op in reversed(ops)])
    functions = [OPS.get(op, lambda t: 3 * t) for op in ops]
    for function in functions:
        register(model, place, what, function)
    leaf = x.clone().requires_grad_()
    model(leaf).sum().backward()
    expected = {"x": leaf.grad, **{n: p.grad for n, p in model.named_parameters()}}
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert any(not torch.equal(found[key], other[key]) for key in found)


def register(model: nn.Module, place: str, what: str, function: Callable[[Tensor], Tensor]) -> None:
    """The edit as a person would write it, with one of PyTorch's own hooks."""
    if what == "grad":
        model.get_parameter(place).register_hook(function)
        return
    module = model.get_submodule(place)
    if what == "input":
        module.register_forward_pre_hook(lambda m, args: (function(args[0]), *args[1:]))
    elif what == "output":
        module.register_forward_hook(lambda m, args, output: function(output))
    elif what == "grad_output":
        module.register_full_backward_pre_hook(lambda m, grads: tuple(map(function, grads)))
    else:
        module.register_full_backward_hook(lambda m, ins, outs: tuple(map(function, ins)))


# On models as people have them.


def compare_with_hooks(name: str, edits: list[tuple[str, str, str]], **build: Any) -> None:
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None, **build).double().eval()
    twin, x = copy.deepcopy(model), torch.randn(2, 3, 64, 64, dtype=torch.float64)
    plain = grads_of(copy.deepcopy(model), x)
    found = grads_of(model, x, [f"{place}:{what}={op}" for place, what, op in edits])
    assert sum(hooks_on(model).values()) == 0
    for place, what, op in edits:
        register(twin, place, what, OPS[op])
    leaf = x.clone().requires_grad_()
    twin(leaf).sum().backward()
    expected = {"x": leaf.grad, **{n: p.grad for n, p in twin.named_parameters()}}
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert any(not torch.equal(found[key], plain[key]) for key in found)


def test_forward_and_parameter_edits_on_a_resnet_equal_hooks_by_hand() -> None:
    compare_with_hooks(
        "resnet18",
        [
            ("layer1.0.conv2", "output", "scale(2)"),
            ("layer2.1", "input", "clamp(-1,1)"),
            ("layer3", "output", "square"),
            ("fc.weight", "grad", "scale(2)"),
            ("fc.weight", "grad", "square"),
            ("conv1.weight", "grad", "clamp(-1,1)"),
        ],
    )


def test_gradient_edits_on_a_swin_equal_full_backward_hooks_by_hand() -> None:
    compare_with_hooks(
        "swin_t",
        [
            ("features.1.0.attn", "grad_output", "scale(2)"),
            ("features.3.1.mlp", "grad_input", "clamp(-1,1)"),
            ("features.5.0.norm2", "grad_output", "square"),
            ("head", "grad_input", "scale(2)"),
        ],
    )


class GuidedRelu(torch.autograd.Function):
    """Springenberg et al. (2014), "Striving for Simplicity": no negative gradient passes backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where((x > 0) & (grads[0] > 0), grads[0], 0)


class Guided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = GuidedRelu.apply(x)
        return result


def guided(model: nn.Module) -> nn.Module:
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, Guided())
    return model


@pytest.mark.parametrize(
    ("name", "inplace"), [("resnet18", True), ("resnet18", False), ("vgg11", True), ("quantized_resnet18", False)]
)
def test_guided_backpropagation_equals_one_by_hand(name: str, inplace: bool) -> None:
    torch.manual_seed(0)
    extra = {"quantize": False} if "quantized" in name else {}
    model = torchvision.models.get_model(name, weights=None, **extra).eval()
    relus = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.ReLU)]
    assert relus
    for _, relu in relus:
        relu.inplace = inplace
    x = torch.randn(2, 3, 64, 64)
    edits = [f"{fqn}:grad_input=clamp(min=0)" for fqn, _ in relus]
    if name == "resnet18":
        edits = ["*relu*:grad_input=clamp(min=0)"]
    plain = grads_of(copy.deepcopy(model), x)
    found = grads_of(copy.deepcopy(model), x, edits)
    expected = grads_of(guided(copy.deepcopy(model)), x)
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
    assert not torch.allclose(plain["x"], expected["x"])


class Keywords(nn.Module):
    """Called with a positional argument, a keyword argument and a list, and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Any:
        parts = [x * 2, x * 3]
        found = self.inner(x, mask=torch.ones_like(x), parts=parts, count=torch.tensor(3))
        return {**found, "sum of the list": parts[0] + parts[1]}


class Inner(nn.Module):
    def forward(self, x: Tensor, *, mask: Tensor, parts: list[Tensor], count: Tensor) -> dict[str, Tensor]:
        return {"a": x * mask * count, "b": parts[0] + parts[1]}


def test_inputs_by_keyword_and_in_lists_are_edited_for_the_time_of_the_call() -> None:
    with watch(Keywords(), edits=["inner:input=scale(10)"]) as seen:
        found = seen.session.model(torch.ones(2))
    assert found["a"].tolist() == [300, 300]  # x and mask, but not the integer
    assert found["b"].tolist() == [50, 50]
    assert found["sum of the list"].tolist() == [5, 5]


def test_each_tensor_of_a_dict_is_edited_and_its_gradient_too() -> None:
    x = torch.ones(2, requires_grad=True)
    with watch(Keywords(), edits=["inner:output=scale(10)", "inner:grad_output=scale(2)"]) as seen:
        found = seen.session.model(x)
        (found["a"].sum() + found["b"].sum()).backward()
    assert found["a"].tolist() == [30, 30] and found["b"].tolist() == [50, 50]
    assert x.grad is not None and x.grad.tolist() == [160, 160]  # 2 * 10 * (3 + 5)


@pytest.mark.parametrize("what", ["dict", "tuple", "named", "dataclass"])
def test_nested_outputs_keep_their_type(what: str) -> None:
    model = Nested(what)
    plain = model(torch.ones(1, 3))
    with watch(model, edits=["(model):output=zero"]):
        found = model(torch.ones(1, 3))
    assert type(found) is type(plain)
    tensors = vars(found) if isinstance(found, Box) else found
    assert all(not t.any() for t in torch.utils._pytree.tree_leaves(tensors))


def test_a_module_called_three_times_is_edited_each_time() -> None:
    model, ids = Shared(), torch.tensor([[1, 2]])
    with torch.no_grad():
        model.mix.weight.copy_(torch.eye(5))
        model.mix.bias.zero_()
    plain = model(ids)
    with watch(model, edits=["mix:output=scale(2)"]) as seen:
        torch.testing.assert_close(model(ids), 8 * plain)
    rows = [row for row in seen.reports()[0].rows if row.get("edited")]
    assert [(row.fqn, row["call"], row["edited"]) for row in rows] == [("mix", n, "scale(2)") for n in range(3)]


def test_noise_differs_between_the_calls_of_one_module() -> None:
    noises: list[Tensor] = []
    model = Shared()
    with watch(model, edits=["mix:output=zero", "mix:output=noise(1)"]) as seen:
        seen.session.forward(lambda event: noises.append(event.output.clone()) if event.fqn == "mix" else None)
        model(torch.tensor([[1, 2]]))
    assert len({tuple(noise.flatten().tolist()) for noise in noises}) == 3


def test_what_an_embedding_receives_is_left_alone_and_that_is_said() -> None:
    with pytest.raises(UsageError, match=r"changed nothing: it reached only int64 tensors, which edits leave alone"):
        capture(Shared(), torch.tensor([[1, 2]]), ["activations"], edits=["embed:input=zero"])
    [report] = capture(Shared(), torch.tensor([[1, 2]]), ["activations"], edits=["*:input=zero"])
    rows = {(row.fqn, row["call"]): row.stats for row in report.rows}
    stats = rows["embed", 0]
    assert stats is not None and stats.zeros < stats.numel  # its row was looked up, not row 0
    assert rows["head", 0] == rows["", 0]


@pytest.mark.parametrize("edited", ["relu:input=scale(-1)", "relu:output=scale(-1)"])
def test_a_module_that_works_in_place_gets_the_edited_tensor(edited: str) -> None:
    model = nn.Sequential()
    model.add_module("lin", nn.Linear(4, 4).double())
    model.add_module("relu", nn.ReLU(inplace=True))
    x = torch.randn(3, 4, dtype=torch.float64)
    flow = model.get_submodule("lin")(x)
    expected = (-flow).relu() if "input" in edited else -flow.relu()
    with watch(model, edits=[edited, "relu:grad_input=scale(2)"]) as seen:
        leaf = x.clone().requires_grad_()
        result = model(leaf)
        result.sum().backward()
    assert torch.equal(result, expected)
    twin = leaf.detach().clone().requires_grad_()
    lin = model.get_submodule("lin")(twin)
    ((-lin).relu() if "input" in edited else -lin.relu()).sum().backward()
    assert leaf.grad is not None and twin.grad is not None
    torch.testing.assert_close(leaf.grad, 2 * twin.grad)
    assert {row.fqn: row.get("edited") for row in seen.reports()[0].rows}["lin"] is None


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.one, self.two, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def part(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(torch.tanh(self.one(x)))))

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.part, x, use_reentrant=self.reentrant) if self.reentrant is not None else self.part(x)
        return self.out(y)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    "edit", ["one:output=noise(0.5)", "two:input=noise(1)", "one:output=scale(2)", "one:grad_output=scale(2)"]
)
def test_a_recomputed_forward_gets_the_same_edit(reentrant: bool, edit: str) -> None:
    torch.manual_seed(0)
    model = Checkpointed(reentrant).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    found = grads_of(copy.deepcopy(model), x, [edit])
    model.reentrant = None  # type: ignore[assignment]
    expected = grads_of(copy.deepcopy(model), x, [edit])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    plain = grads_of(model, x)
    assert any(not torch.allclose(expected[key], plain[key]) for key in plain)


def test_noise_does_not_shift_the_models_own_dropout() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5)).train()
    x, masks = torch.randn(4, 8), {}
    for name, edits in {"plain": [], "noisy": ["0:output=noise(3)", "2:output=noise(3)"]}.items():
        torch.manual_seed(0)
        with watch(model, edits=edits) as seen:
            kept: list[Tensor] = []
            seen.session.forward(
                lambda e, kept=kept: kept.append(e.output == 0) if type(e.module) is nn.Dropout else None
            )
            model(x)
        masks[name] = [*kept, torch.get_rng_state()]
    assert equal(masks["plain"][-1], masks["noisy"][-1])
    assert len(masks["plain"]) == 3 and equal(masks["plain"], masks["noisy"])


def test_bfloat16_flows_through_edits_forward_and_backward() -> None:
    model = Hand().bfloat16()
    x = torch.ones(2, 2, dtype=torch.bfloat16)
    edits = ["relu:output=noise(0.1)", "relu:grad_output=noise(0.1)", "out.weight:grad=scale(2)", "first:input=ones"]
    [report] = capture(model, x, ["grads"], edits=edits)
    assert {row["dtype"] for row in report.rows} == {"bfloat16"}
    assert {row.fqn: row.get("edited") for row in report.rows}["out.weight"] == "scale(2)"


# What it leaves behind.

EVERY = [
    "first:input=noise(0.1)",
    "relu:output=scale(2)",
    "out:grad_output=noise(0.1)",
    "relu:grad_input=clamp(min=0)",
    "*.weight:grad=square",
]


def test_nothing_is_left_after_a_capture() -> None:
    model, x = Hand(), torch.ones(3, 2)
    model(x).sum().backward()
    with untouched(model):
        [report] = capture(model, x, ["grads"], edits=EVERY)
    assert report.meta["edits"] == EVERY
    json.dumps(report.to_dict()["meta"])


@pytest.mark.parametrize("what", ["input", "output", "grad_input", "grad_output", "grad"])
def test_nothing_is_left_when_an_edit_raises(what: str) -> None:
    def raises(x: Tensor) -> Tensor:
        raise ValueError("no")

    model = Hand()
    model(torch.ones(1, 2)).sum().backward()
    edit = Edit("mine", "out.weight" if what == "grad" else "relu", what, "raises", raises)
    with untouched(model), pytest.raises(UsageError, match="raises failed: ValueError: no"):
        capture(model, torch.ones(3, 2), ["grads"], edits=[*EVERY, edit])
    before = hooks_on(model)
    with pytest.raises(UsageError, match="raises failed"), watch(model, edits=[*EVERY, edit]):
        model(torch.ones(3, 2, requires_grad=True)).sum().backward()
    assert hooks_on(model) == before and sum(before.values()) == 0


def test_nothing_is_left_when_an_edit_matches_nothing() -> None:
    model = Hand()
    for edit in ("nope:output=zero", "nope.weight:grad=zero"):
        with untouched(model), pytest.raises(UsageError, match="matches nothing"):
            capture(model, torch.ones(3, 2), ["grads"], edits=[*EVERY, edit])
        with untouched(model), pytest.raises(UsageError, match="matches nothing"), watch(model, edits=[edit]):
            pass


def test_after_edits_the_model_runs_bit_for_bit_as_before() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).eval()
    x = torch.randn(2, 3, 64, 64)
    before = grads_of(copy.deepcopy(model), x)
    with untouched(model):
        capture(model, x, ["grads"], edits=["*relu*:output=noise(1)", "*.bn1:grad_output=zero", "fc.*:grad=ones"])
    assert equal(before, grads_of(model, x))


def test_an_edit_that_changes_no_bit_leaves_the_run_as_it_is() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).train()
    x = torch.randn(2, 3, 64, 64)
    expected = grads_of(copy.deepcopy(model), x)
    every = ["*:output=scale(1)", "*:input=scale(1)", "*:grad_output=scale(1)", "*:grad=scale(1)"]
    assert equal(expected, grads_of(model, x, every))


def test_edits_do_not_keep_their_count_from_an_earlier_run() -> None:
    edit = parse_edit("relu:output=scale(2)")
    for _ in range(2):
        capture(Hand(), torch.ones(1, 2), ["activations"], edits=[edit])
    assert edit.applied == 0


# Models and edits that do not go together.


def test_gradients_where_there_are_none() -> None:
    for what in ("grad_output", "grad_input"):
        with pytest.raises(UsageError, match=r"there are no gradients here; use `hookcli grads`"):
            capture(Hand(), torch.ones(1, 2), ["activations"], edits=[f"relu:{what}=zero"])
    with pytest.raises(UsageError, match="no gradients here"):
        capture(Hand(), torch.ones(1, 2), ["shapes"], edits=["out.weight:grad=zero"])


def test_a_frozen_parameter_is_said_to_be_frozen() -> None:
    model = Hand()
    model.first.requires_grad_(False)
    with pytest.raises(UsageError, match=r"'first\.\*:grad=zero' matches nothing: .*frozen"):
        check_edits([parse_edit("first.*:grad=zero")], model, backward=True)
    with pytest.raises(UsageError, match=r"unknown parameter 'firs\.weight'; did you mean first\.weight"):
        check_edits([parse_edit("firs.weight:grad=zero")], model, backward=True)


def test_a_module_is_not_a_parameter_and_the_reverse() -> None:
    with pytest.raises(UsageError, match=r"first is a module: name its parameters, as in 'first\.\*:grad'"):
        check_edits([parse_edit("first:grad=zero")], Hand(), backward=True)
    with pytest.raises(
        UsageError, match=r"first\.weight is a parameter: what changes is its gradient, 'first\.weight:grad'"
    ):
        check_edits([parse_edit("first.weight:output=zero")], Hand(), backward=True)


def test_a_tied_parameter_is_known_by_its_first_name() -> None:
    with pytest.raises(UsageError, match=r"head\.weight is another name of embed\.weight: use that"):
        check_edits([parse_edit("head.weight:grad=zero")], Shared(), backward=True)


def test_what_never_ran_and_what_no_gradient_reached() -> None:
    class Leaves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    for edit, reason in {
        "unused:output=zero": "what it matches was never called, or had no tensor as output",
        "unused:grad_output=zero": "no gradient reached it",
        "unused.weight:grad=zero": "no gradient reached it",
        "used:grad_input=zero": "no gradient reached it",
    }.items():
        with untouched(model := Leaves()), pytest.raises(UsageError, match=reason) as caught:
            capture(model, torch.ones(1, 2), [GradsProbe("outputs")], edits=[edit])
        assert [row.fqn for row in caught.value.reports[0].rows] == ["", "used"]


def test_the_model_failing_is_the_models_error() -> None:
    class Fails(Hand):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("lost")

    with pytest.raises(ModelError, match="KeyError"):
        capture(Fails(), torch.ones(1, 2), ["activations"], edits=["relu:output=zero"])


def test_a_long_error_of_pytorch_is_cut_to_its_first_line() -> None:
    model = nn.Embedding(10, 3, sparse=True)
    with pytest.raises(UsageError, match=r"at grad of weight: zero failed: NotImplementedError") as caught:
        capture(model, torch.tensor([1, 2]), ["grads"], edits=["weight:grad=zero"])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    [row] = capture(model, torch.tensor([1, 2]), ["grads"], edits=["weight:grad=scale(2)"])[0].rows
    assert row["max"] == 2.0


# Known faults, outside of edits themselves; each test begins to pass when its fault is mended.


def test_a_list_edited_twice_is_the_callers_again() -> None:
    with watch(Keywords(), edits=["inner:input=scale(10)", "inner:input=scale(10)"]) as seen:
        found = seen.session.model(torch.ones(2))
    assert found["sum of the list"].tolist() == [5, 5]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_module_in_two_checkpoints_gets_the_noise_of_its_own_call(reentrant: bool) -> None:
    class Twice(Checkpointed):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = checkpoint(self.part, x, use_reentrant=reentrant) if self.reentrant is not None else self.part(x)
            return self.out(x)

    torch.manual_seed(0)
    model, x = Twice(reentrant).double(), torch.randn(3, 4, dtype=torch.float64)
    found = grads_of(copy.deepcopy(model), x, ["two:output=noise(1)"])
    model.reentrant = None  # type: ignore[assignment]
    torch.testing.assert_close(found, grads_of(model, x, ["two:output=noise(1)"]))


def test_noise_given_twice_is_two_noises() -> None:
    with watch(nn.Identity(), edits=["(model):output=noise(1)"] * 2) as seen:
        spread = seen.session.model(torch.zeros(100_000)).std().item()
    assert abs(spread - 2**0.5) < 0.02


@pytest.mark.parametrize("reentrant", [False, True])
def test_each_call_is_repeated_with_its_own_noise_however_checkpoints_cut(reentrant: bool) -> None:
    """One module: called outside of any checkpoint, twice in one, once in another, and outside again."""

    class Cut(nn.Module):
        def __init__(self, cut: bool) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
            self.cut = cut

        def region(self, function: Any, x: Tensor) -> Tensor:
            return checkpoint(function, x, use_reentrant=reentrant) if self.cut else function(x)

        def forward(self, x: Tensor) -> Tensor:
            x = self.part(x)
            x = self.region(lambda x: self.part(self.part(x)), x)
            x = self.region(self.part, x)
            return self.part(x).pow(2)

    torch.manual_seed(0)
    cut, x = Cut(True).double(), torch.randn(4, 3, dtype=torch.float64)
    whole = Cut(False).double()
    whole.load_state_dict(cut.state_dict())
    edits = ["part*:output=noise(1)"]
    torch.testing.assert_close(grads_of(cut, x, edits), grads_of(whole, x, edits))
