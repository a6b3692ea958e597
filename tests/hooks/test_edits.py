"""Edits by themselves, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hooks.edited import OPS, OWN
from support import Hand, each_once, untouched
from torch import Tensor

from hookcli import capture
from hookcli.errors import UsageError
from hookcli.hooks.edits.base import Edit, parse_edit

X = torch.tensor([[-2.0, -0.5, 0.0, 0.25, 3.0]], dtype=torch.float64)


@pytest.fixture(autouse=True)
def own_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_of_tests.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def apply(text: str, x: Tensor, seed: int = 0, *, fqn: str = "layer", call: int = 0, path: str = "") -> Tensor:
    return parse_edit(f"layer:output={text}", seed).apply(fqn, call, path, x)


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
    assert torch.equal(edit.apply("layer", 0, "", torch.zeros(3)), edit.apply("layer", 0, "", torch.zeros(3)))
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
    "relu:output=zeros": "unknown operation 'zeros'; did you mean zero? "
    "(choose from: zero, mean, ones, scale, clamp, noise, square, from), or your own function as pkg.mod:fn",
    "relu:output=Zero": "unknown operation 'Zero'; did you mean zero?",
    "relu:output=scale": "missing a required argument: 'factor'; use scale(factor)",
    "relu:output=scale(1,2)": "too many positional arguments; use scale(factor)",
    "relu:output=scale(by=2)": "use scale(factor)",
    "relu:output=scale(x)": "(x) must contain plain values, for example clamp(-1,1)",
    "relu:output=scale(2": "'scale(2' is not an operation; examples: zero, scale(2), clamp(-1,1), pkg.mod:fn",
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


@pytest.mark.parametrize(("name", "what"), each_once(BAD, ["input", "output", "grad_input", "grad_output", "grad"]))
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


def by_hand(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda *arguments: function(arguments[-1])
