"""Hooks and wrappers of the program itself work as if nobody looked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from observing import observed, rows
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from hookcli.hooks.program.global_hooks import GlobalHooks


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))


@pytest.mark.sweep
def test_a_program_with_hooks_of_its_own() -> None:
    def program() -> list[Any]:
        model, calls = net(), []
        double = model[0].register_forward_hook(lambda m, args, output: output * 2)
        model.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
        model[2].register_full_backward_hook(lambda m, g_in, g_out: calls.append(float(g_out[0].sum())))
        model[0].weight.register_post_accumulate_grad_hook(lambda p: calls.append(float(p.grad.sum())))
        handle = torch_module.register_module_forward_hook(lambda m, args, out: calls.append(type(m).__name__))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: calls.append("step"))
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            calls.append([len(m._forward_hooks) for m in model.modules()])
            if step == 2:
                double.remove()
        handle.remove()
        return [model, str(calls)]

    seen = observed(program, every=2)
    assert seen.steps() == [0, 2] and not seen.errors


def test_what_hooks_of_the_program_change_is_what_is_seen() -> None:
    def program() -> Tensor:
        model = nn.Sequential(nn.Identity(), nn.Linear(2, 1))
        model[0].register_forward_hook(lambda m, args, output: output * 3)
        with torch.no_grad():
            return model(torch.ones(1, 2))

    assert rows(observed(program).only, "activations")["0"].stats.mean == 3.0


@pytest.mark.sweep
def test_a_hook_that_removes_itself_and_one_that_adds_another() -> None:
    def program() -> list[Any]:
        model, calls = net(), []

        def once(module: nn.Module, args: Any, output: Any) -> None:
            calls.append("once")
            handle.remove()
            module.register_forward_hook(lambda *_: calls.append("later"))

        handle = model.register_forward_hook(once)
        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()
        return [model, calls]

    assert observed(program).steps() == [0, 1, 2]


def test_what_others_wrap_meanwhile_stays() -> None:
    original = torch.autograd.backward
    hooks = GlobalHooks(listener=_Deaf())
    with hooks:
        ours = torch.autograd.backward
        torch.autograd.backward = theirs = lambda *args, **kwargs: ours(*args, **kwargs)  # type: ignore[assignment]
    try:
        assert ours is not original and torch.autograd.backward is theirs
        x = torch.ones(1, requires_grad=True)
        x.sum().backward()  # through what is left of ours
        assert x.grad == 1
    finally:
        torch.autograd.backward = original


class _Deaf:
    def __getattr__(self, name: str) -> Any:
        return lambda *args: None
