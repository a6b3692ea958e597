"""What is input in a batch, and what is its target."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookcli.engine.inputs import Forward
from hookcli.engine.preserve import copied, same_layout
from hookcli.errors import UsageError
from hookcli.sources.data.base import AllInput

X, Y, Z = torch.zeros(2, 3), torch.ones(2), torch.full((2,), 2.0)


class One(nn.Module):
    def forward(self, x: Any, mask: Any = None) -> Any:
        return x


class Two(nn.Module):
    def forward(self, x: Any, mask: Any) -> Any:
        return x


class Detector(nn.Module):
    def forward(self, images: Any, targets: Any = None) -> Any:
        return images


class Language(nn.Module):
    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
        return input_ids


class Anything(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args


@pytest.mark.parametrize(
    ("kind", "given", "arguments", "target"),
    [
        (One, X, (X,), None),
        (One, (X,), (X,), None),
        (One, [X, Y], (X,), Y),
        (One, (X, Y, Z), (X, Y), Z),
        (One, {"x": X, "mask": Y}, {"x": X, "mask": Y}, None),
        (One, {"x": X, "label": Y}, {"x": X}, Y),
        (One, {"picture": X, "label": Y}, (X,), Y),
        (One, ({"x": X}, Y), {"x": X}, Y),
        (One, ([X, X], Y), ([X, X],), Y),
        (Two, (X, Y), (X, Y), None),
        (Two, (X, Y, Z), (X, Y), Z),
        (Two, ((X, Y), Z), (X, Y), Z),
        (Detector, ([X], [Y]), ([X], [Y]), None),
        (Language, (X, Y), {"input_ids": X, "labels": Y}, None),
        (Language, ({"input_ids": X}, Y), {"input_ids": X, "labels": Y}, None),
        (Anything, (X, Y), (X, Y), None),
        (Anything, {"a": X}, {"a": X}, None),
        (One, AllInput((X, Y)), (X, Y), None),
        (One, AllInput({"x": X, "token_type_ids": Y}, spare=True), {"x": X}, None),
        (One, AllInput({"input_ids": X, "attention_mask": Y}, spare=True), (X,), None),
    ],
)
def test_a_batch_is_split_by_the_parameters_of_forward(
    kind: type[nn.Module], given: Any, arguments: Any, target: Any
) -> None:
    found, own = Forward.of(kind()).split(given)
    assert type(found) is type(arguments) and own is target
    if isinstance(arguments, dict):
        assert [*found] == [*arguments]
    values = [*found.values()] if isinstance(found, dict) else found
    wanted = [*arguments.values()] if isinstance(arguments, dict) else arguments
    for a, b in zip(values, wanted, strict=True):
        assert a is b or (isinstance(b, list) and all(x is y for x, y in zip(a, b, strict=True)))


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (One, "abc", "is str; give a tensor"),
        (One, (), "is empty"),
        (One, (X, Y, Z, Z), "has 3 inputs and a target, but forward takes x, mask"),
        (Two, {"x": X}, "lacks 'mask', which forward needs; it has x"),
        (One, {"x": X, "masc": Y}, "unknown keyword of forward 'masc'; did you mean mask?"),
        (One, AllInput({"x": X, "y": Y}), "unknown keyword of forward 'y'"),
    ],
)
def test_what_forward_can_t_take_is_said(kind: type[nn.Module], given: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Forward.of(kind()).split(given)
    assert said in str(caught.value)


def test_torchscript_tells_its_names() -> None:
    (x,), target = Forward.of(torch.jit.script(nn.ReLU())).split((X, Y))
    assert x is X and target is Y


def test_a_copy_has_the_strides_of_its_tensor_and_the_type() -> None:
    """Also with elements that overlap or have gaps between them, as an expanded view or every second row has."""
    whole = torch.arange(24.0).reshape(4, 6)
    for x in (whole, whole.T, whole[::2], whole[:, ::3], torch.ones(1, 6).expand(4, 6), nn.Parameter(whole)):
        [copy] = copied([x])
        assert torch.equal(copy, x) and copy.stride() == x.stride() and copy.data_ptr() != x.data_ptr()
        assert copy.requires_grad == x.requires_grad
    assert type(same_layout(whole.as_subclass(Named))) is Named


class Named(Tensor):
    """A tensor of another class, which only its own operators know to copy."""
