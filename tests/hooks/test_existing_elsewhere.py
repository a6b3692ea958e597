"""Hooks of parameters, of the process, and what is left of removed ones."""

from __future__ import annotations

import copy
import functools
import inspect

import pytest
import torch
from hooks.existing_hooks import Caller, Teacher, plain, public
from support import Hand, hooks_on, untouched
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import prune
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.engine.capture import capture
from hookcli.hooks.existing import EVERY_MODULE, EVERY_OPTIMIZER, STALE, ExistingHook, existing_hooks
from hookcli.hooks.kinds import HookKind


def brief(found: list[ExistingHook]) -> list[tuple[str, str, int, str]]:
    return [(hook.fqn, hook.kind, hook.order, hook.function) for hook in found]


def test_hooks_of_parameters_and_buffers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].weight.register_hook(plain)
    model[0].bias.register_post_accumulate_grad_hook(Caller())
    model[1].running_mean.requires_grad_().register_hook(public)
    model.append(nn.Linear(2, 2))
    model[2].weight = model[0].weight  # tied: one tensor, one hook
    found = existing_hooks(model)
    assert [(*row, hook.type) for row, hook in zip(brief(found), found, strict=True)] == [
        ("0.weight", "tensor_grad", 0, "plain", "Parameter"),
        ("0.bias", "post_accumulate_grad", 0, "Caller.__call__", "Parameter"),
        ("1.running_mean", "tensor_grad", 0, "public", "Buffer"),
    ]


GLOBAL = {
    "forward_pre": torch_module.register_module_forward_pre_hook,
    "forward": torch_module.register_module_forward_hook,
    "full_backward_pre": torch_module.register_module_full_backward_pre_hook,
    "full_backward": torch_module.register_module_full_backward_hook,
    "backward": torch_module.register_module_backward_hook,
    "module_registration": torch_module.register_module_module_registration_hook,
    "parameter_registration": torch_module.register_module_parameter_registration_hook,
    "buffer_registration": torch_module.register_module_buffer_registration_hook,
    "optimizer_step_pre": register_optimizer_step_pre_hook,
    "optimizer_step_post": register_optimizer_step_post_hook,
}


@pytest.fixture
def global_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the flag back that a global backward hook would leave for good."""
    monkeypatch.setattr(torch_module, "_global_is_full_backward_hook", None)


@pytest.mark.usefixtures("global_flag")
@pytest.mark.parametrize("kind", GLOBAL)
def test_hooks_of_the_process(kind: str) -> None:
    model = Hand()
    with GLOBAL[kind](plain):
        (hook,) = existing_hooks(model)
    place = EVERY_OPTIMIZER if kind.startswith("optimizer") else EVERY_MODULE
    assert (hook.fqn, hook.type, hook.kind, hook.function, hook.legacy) == (
        place, None, kind, "plain", kind == "backward",
    )  # fmt: skip
    left = [(h.kind, h.function) for h in existing_hooks(model)]
    flag = f"_global_is_full_backward_hook = {kind == 'full_backward'}"
    assert left == ([(STALE, flag)] if kind in ("backward", "full_backward") else [])


@pytest.mark.usefixtures("global_flag")
def test_full_backward_hooks_of_the_process_beside_ours() -> None:
    """Those that hookcli registers for all modules leave the flag that the user's own have set."""
    fired: list[str] = []
    with torch_module.register_module_full_backward_hook(lambda module, *_: fired.append(type(module).__name__)):
        model = Hand()
        with untouched(model):
            [report] = capture(model, torch.ones(1, 2), [TraceProbe((HookKind.FULL_BACKWARD,))], globally=True)
        fired.clear()
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert sorted(row.fqn for row in report.rows) == ["", "first", "out", "relu"] and len(fired) == 4


def test_ids_that_a_global_hook_leaves() -> None:
    before = dict(torch_module._global_forward_hooks_with_kwargs)
    with torch_module.register_module_forward_hook(plain, with_kwargs=True, always_call=True):
        (hook,) = existing_hooks(Hand())
        assert hook.flags == ("with_kwargs", "always_call")
    try:
        (left,) = existing_hooks(Hand())
        assert left.kind == STALE and left.function == "_global_forward_hooks_with_kwargs (1)"
        assert torch_module._has_any_global_hook()  # what makes torch.compile warn
    finally:
        torch_module._global_forward_hooks_with_kwargs.clear()
        torch_module._global_forward_hooks_with_kwargs.update(before)


@pytest.mark.parametrize(
    ("register", "refused"),
    [
        ("register_backward_hook", "register_full_backward_hook"),
        ("register_full_backward_hook", "register_backward_hook"),
    ],
)
def test_a_flag_that_stays_after_removal(register: str, refused: str) -> None:
    model = Hand()
    getattr(model.first, register)(plain).remove()
    (left,) = existing_hooks(model)
    assert (left.fqn, left.kind, left.legacy, left.file) == ("first", STALE, False, None)
    assert left.note is not None and f"PyTorch refuses {refused} on this module" in left.note
    with pytest.raises(RuntimeError, match="Cannot use both"):  # as the note says
        getattr(model.first, refused)(plain)


def test_a_backward_hook_without_its_flag_never_fires() -> None:
    model, fired = Hand(), []
    model.first.register_full_backward_hook(lambda *_: fired.append(1))
    model.first._is_full_backward_hook = None  # as in a module that an old PyTorch pickled
    (hook,) = existing_hooks(model)
    model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert hook.note is not None and hook.note.startswith("never fires") and not fired


def test_weight_norm_spectral_norm_and_pruning() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.warns(FutureWarning, match="deprecated"):
        nn.utils.weight_norm(model[0])
    nn.utils.spectral_norm(model[1])
    prune.l1_unstructured(model[2], "weight", 0.5)
    prune.l1_unstructured(model[2], "bias", 0.5)
    nn.utils.parametrizations.orthogonal(model[3])  # a parametrization is not a hook
    found = existing_hooks(model)
    assert brief(found) == [
        ("0", "forward_pre", 0, "WeightNorm.__call__"),
        ("1", "forward_pre", 0, "SpectralNorm.__call__"),
        ("1", "state_dict_post", 0, "SpectralNormStateDictHook.__call__"),
        ("1", "load_state_dict_pre", 0, "SpectralNormLoadStateDictPreHook.__call__"),
        ("2", "forward_pre", 0, "L1Unstructured.__call__"),
        ("2", "forward_pre", 1, "L1Unstructured.__call__"),
    ]
    line = inspect.getsourcelines(type(next(iter(model[0]._forward_pre_hooks.values()))).__call__)[1]
    assert (found[0].file, found[0].line) == ("torch/nn/utils/weight_norm.py", line)


def test_a_deepcopys_hooks_that_work_on_the_original() -> None:
    model = Hand()
    model.relu.register_forward_hook(lambda *_: model.out)
    outside = Teacher()
    model.out.register_forward_hook(outside.watch)
    model.out.register_forward_hook(functools.partial(plain, model.first))
    model.out.register_forward_hook(functools.partial(plain, outside, of=3))
    held = ["", "bound to a Teacher", "", "bound to a Teacher"]
    notes = [hook.note or "" for hook in existing_hooks(model)]
    assert [note.partition(" that ")[0] for note in notes] == held
    notes = [hook.note or "" for hook in existing_hooks(copy.deepcopy(model))]
    assert [note.partition(" that ")[0] for note in notes] == ["closes over a Hand", *held[1:]]


def test_select_takes_a_tensor_by_its_name_or_with_its_module() -> None:
    model = Hand()
    model.first.weight.register_hook(plain)
    model.out.register_forward_hook(plain)
    with GLOBAL["forward"](plain):
        assert len(existing_hooks(model)) == 3
        for wanted in ("first", "first.weight"):
            assert [h.fqn for h in existing_hooks(model, lambda fqn, _, w=wanted: fqn == w)] == ["first.weight"]
        assert [h.fqn for h in existing_hooks(model, lambda _, module: isinstance(module, nn.Linear))] == [
            "first.weight", "out",
        ]  # fmt: skip


def test_unusual_modules() -> None:
    lazy = nn.LazyLinear(3)
    assert {"LazyModuleMixin._infer_parameters", "LazyModuleMixin._lazy_load_hook"} <= {
        hook.function for hook in existing_hooks(lazy)
    }
    traced = torch.jit.trace(Hand(), torch.ones(1, 2))
    assert existing_hooks(traced) == []
    compiled = torch.compile(model := Hand(), backend="eager")
    model.out.register_forward_hook(plain)
    assert [h.fqn for h in existing_hooks(compiled)] == ["_orig_mod.out"]
    assert sum(hooks_on(model).values()) == 1
