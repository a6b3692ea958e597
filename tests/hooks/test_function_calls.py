"""FunctionCalls of PyTorch's functions are remembered without tensors, and whatever their arguments are."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode

from hookcli.hooks.observing_mode import FunctionCalls, Shape


def test_no_tensor_is_held_and_like_calls_are_one() -> None:
    with FunctionCalls(lambda function: True) as calls:
        held = []
        for _ in range(5):
            x = torch.ones(3, 4)
            held.append(weakref.ref(torch.mm(x, x.t())))
        del x
    assert all(reference() is None for reference in held)
    [mm] = [call for call in calls.signatures if call.function is torch.mm]
    assert mm.args.items == (Shape((3, 4), torch.float32), Shape((4, 3), torch.float32))
    assert calls.log.tolist().count(calls.signatures[mm]) == 5


def test_arguments_of_any_kind() -> None:
    with FunctionCalls(lambda function: True) as calls:
        assert torch.ones(3, 4)[:, 1:3].shape == (3, 2)
        with FakeTensorMode(shape_env=ShapeEnv()) as fake:
            x = fake.from_tensor(torch.ones(3, 4), static_shapes=False)
            assert isinstance(x @ x.t(), Tensor)
    assert calls.log


def test_a_mode_of_the_programs_own_goes_before() -> None:
    class Doubles(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {})) * (2 if func is torch.mm else 1)

    with FunctionCalls(lambda function: function is torch.mm) as calls, Doubles():
        y = torch.mm(torch.eye(2), torch.eye(2))
        assert torch.overrides.has_torch_function((y,))
    assert y.trace() == 4 and len(calls.log) == 1


def test_an_exception_passes_through() -> None:
    with FunctionCalls(lambda function: True) as calls, pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert not [call for call in calls.signatures if call.function is torch.mm]
