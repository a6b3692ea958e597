"""PyTorch's frames are known by their code, so that one more or one less changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hookcli.hooks.program.outermost import OutermostCalls
from hookcli.hooks.torch_private import frames


def plain(hook: Callable[..., Any]) -> Callable[..., Any]:
    return hook


def with_a_frame_more(hook: Callable[..., Any]) -> Callable[..., Any]:
    """As if PyTorch called hooks by a function of its own, which is over before the module runs."""
    return lambda *args: hook(*args)


@pytest.mark.parametrize("called", [plain, with_a_frame_more])
@pytest.mark.parametrize("deeper", [False, True])
def test_modules_inside_others_are_not_outermost(
    called: Callable[..., Any], deeper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`deeper`: as if there were a further frame around each call of a module."""
    if deeper:
        original = nn.Module._call_impl
        monkeypatch.setattr(nn.Module, "_call_impl", lambda *args, **kwargs: original(*args, **kwargs))
    told: list[str] = []
    listener = SimpleNamespace(
        enter=lambda module, *args: told.append(f"enter {type(module).__name__}") is None,  # the end of each matters
        leave=lambda module, *rest: told.append(f"leave {type(module).__name__}"),
        failed=lambda thread: told.append("failed"),
    )
    calls = OutermostCalls(listener)
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    with register_module_forward_pre_hook(called(calls.entering())):
        for _ in range(2):
            model(torch.ones(1, 2))
        model[0](torch.ones(1, 2))
    calls.close()
    assert told == ["enter Sequential", "leave Sequential"] * 2 + ["enter Linear", "leave Linear"]
    assert not model._forward_hooks and not model[0]._forward_hooks


def test_a_call_that_an_interrupt_ended_is_over() -> None:
    class Interrupted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    told: list[str] = []
    listener = SimpleNamespace(
        enter=lambda module, *args: told.append(type(module).__name__) is None,
        leave=lambda *a: None,
        failed=lambda thread: None,
    )
    calls = OutermostCalls(listener)
    with register_module_forward_pre_hook(calls.entering()):
        with pytest.raises(KeyboardInterrupt):
            Interrupted()(torch.ones(1))
        nn.ReLU()(torch.ones(1))
    calls.close()
    assert told == ["Interrupted", "ReLU"]


def test_keywords_are_read_in_a_hook_at_any_depth() -> None:
    found: list[dict[str, Any]] = []

    def hook(module: nn.Module, args: Any) -> None:
        found.append(frames.keywords(module))

    with register_module_forward_pre_hook(lambda *args: hook(*args)):
        nn.ReLU()(input=torch.ones(1))
    assert [list(keywords) for keywords in found] == [["input"]]


def test_a_step_that_another_extends_is_known_by_its_code() -> None:
    class Further(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step(closure)

    parameter = nn.Parameter(torch.ones(1))
    told: list[bool] = []
    for kind, expected in ((torch.optim.SGD, [False]), (Further, [False, True])):
        optimizer = kind([parameter], lr=0.1)
        assert frames.step_is_hooked(kind)
        told.clear()
        hook = register_optimizer_step_pre_hook(
            lambda optimizer, args, kwargs: told.append(frames.in_extended_step(optimizer))
        )
        with hook:
            optimizer.step()
        assert told == expected


def test_functions_that_differ_by_their_file_alone_warn_for_their_own() -> None:
    """Code objects that are equal but for their files are equal to Python."""
    source = "import warnings\ndef warn():\n    warnings.warn('here', stacklevel=2)\n\ndef call(run):\n    run(warn)\n"
    files = []
    for name in ("a.py", "b.py"):
        namespace: dict[str, Any] = {"__name__": name}
        exec(compile(source, name, "exec"), namespace)
        with pytest.warns(UserWarning, match="here") as caught:
            namespace["call"](frames.run_as_program)
        files.append([warning.filename for warning in caught])
    assert files == [["a.py"], ["b.py"]]
