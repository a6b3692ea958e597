"""Every hook that is there is listed, as it was registered, and listing changes nothing."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Hand, hooks_on, untouched
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import prune
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hookcli.hooks.existing import EVERY_MODULE, EVERY_OPTIMIZER, LEGACY, STALE, ExistingHook, existing_hooks


def plain(*_: Any) -> None: ...


def public(*_: Any) -> None: ...


class Caller:
    def __call__(self, *_: Any) -> None: ...


class Teacher(nn.Module):
    def forward(self, *_: Any) -> None: ...

    def watch(self, *_: Any) -> None: ...


def here(function: Any) -> tuple[str, int]:
    """Where the test's own source has a function, as a report names it."""
    return str(Path(__file__).relative_to(Path.cwd())), inspect.getsourcelines(function)[1]


def brief(found: list[ExistingHook]) -> list[tuple[str, str, int, str]]:
    return [(hook.fqn, hook.kind, hook.order, hook.function) for hook in found]


MODULE_KINDS = {
    "forward_pre": "register_forward_pre_hook",
    "forward": "register_forward_hook",
    "full_backward_pre": "register_full_backward_pre_hook",
    "full_backward": "register_full_backward_hook",
    "state_dict_pre": "register_state_dict_pre_hook",
    "state_dict_post": "register_state_dict_post_hook",
    "load_state_dict_pre": "register_load_state_dict_pre_hook",
    "load_state_dict_post": "register_load_state_dict_post_hook",
    "backward": "register_backward_hook",
}


def test_a_model_without_hooks() -> None:
    assert existing_hooks(Hand()) == []


@pytest.mark.parametrize(("kind", "register"), MODULE_KINDS.items())
def test_each_kind_of_a_module(kind: str, register: str) -> None:
    model = Hand()
    getattr(model.relu, register)(public)
    with untouched(model):
        (hook,) = existing_hooks(model)
    assert (hook.fqn, hook.type, hook.kind, hook.order, hook.function) == ("relu", "ReLU", kind, 0, "public")
    assert (hook.file, hook.line) == here(public) and hook.flags == ()
    assert hook.legacy == (kind == "backward") and hook.note == (LEGACY if kind == "backward" else None)


def test_every_register_method_of_a_module_and_a_tensor_is_known() -> None:
    """A later PyTorch with another kind fails here."""
    makes_a_hook = {name for name in vars(nn.Module) if name.startswith("register_") and name.endswith("_hook")}
    assert makes_a_hook == set(MODULE_KINDS.values())
    tables = {name for name in vars(nn.Module()) if name.endswith("_hooks")}
    assert len(tables) == len(MODULE_KINDS) - 1  # full and legacy backward share one
    of_tensors = {n for n in vars(torch.Tensor) if n.startswith("register_") and n.endswith("hook")}
    assert of_tensors == {"register_hook", "register_post_accumulate_grad_hook"}


def test_private_registrations_are_told_apart() -> None:
    model = Hand()
    model.relu._register_state_dict_hook(plain)
    model.relu._register_load_state_dict_pre_hook(plain)
    assert [(h.kind, h.flags) for h in existing_hooks(model)] == [
        ("state_dict_post", ("private",)), ("load_state_dict_pre", ("private",)),
    ]  # fmt: skip


def test_flags_and_the_order_of_firing() -> None:
    model, fired = nn.Sequential(nn.Linear(2, 2)), []
    names = {name: functools.partial(lambda name, *_: fired.append(name), name) for name in "abc"}
    model[0].register_forward_hook(names["a"], always_call=True)
    model[0].register_forward_hook(names["b"], with_kwargs=True)
    model[0].register_forward_hook(names["c"], prepend=True)
    model[0].register_forward_pre_hook(plain, with_kwargs=True)
    found = existing_hooks(model)
    assert [(h.kind, h.order, h.flags) for h in found] == [
        ("forward_pre", 0, ("with_kwargs",)),
        ("forward", 0, ("prepend",)),
        ("forward", 1, ("always_call",)),
        ("forward", 2, ("with_kwargs",)),
    ]
    model(torch.ones(1, 2))
    assert fired == ["c", "a", "b"]


def callables() -> dict[str, tuple[Callable[..., Any], Any]]:
    """Hooks by the name that they should have, each with the function in whose source its code is."""

    @functools.wraps(plain)
    def wrapper(*_: Any) -> None: ...

    teacher, inner = Teacher(), lambda *_: None
    name = "callables.<locals>."
    return {
        "plain": (plain, plain),
        "partial(plain)": (functools.partial(functools.partial(plain, 1), 2), plain),
        "partial(Teacher.watch)": (functools.partial(teacher.watch, 1), Teacher.watch),
        "Teacher.watch": (teacher.watch, Teacher.watch),
        f"{name}<lambda>": (inner, inner),
        "Caller.__call__": (Caller(), Caller.__call__),
        "Teacher.forward": (teacher, Teacher.forward),
        "plain ": (wrapper, plain),
        "plain  ": (torch.no_grad()(plain), plain),
        "plain   ": (functools.cache(plain), plain),
        "list.append": ([].append, None),
        "print": (print, None),
    }


@pytest.mark.parametrize("name", callables())
def test_names_and_places_of_callables(name: str) -> None:
    hook, source = callables()[name]
    model = Hand()
    model.out.register_forward_hook(hook)
    (found,) = existing_hooks(model)
    assert found.function == name.strip()
    assert (found.file, found.line) == (here(source) if source else ("(built in)", None))


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
    nn.utils.parametrizations.orthogonal(model[3])  # a parametrization is no hook
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
    notes = [hook.note or "" for hook in existing_hooks(model)]
    assert [note.partition(" that ")[0] for note in notes] == ["", "bound to a Teacher", ""]
    notes = [hook.note or "" for hook in existing_hooks(copy.deepcopy(model))]
    assert [note.partition(" that ")[0] for note in notes] == ["closes over a Hand", "bound to a Teacher", ""]


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
