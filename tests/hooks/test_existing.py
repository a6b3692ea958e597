"""Hooks that a model has already are listed: each kind, with flags and places."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hooks.existing_hooks import Caller, Teacher, plain, public
from support import Hand, untouched
from torch import nn

from hookcli.hooks.existing import LEGACY, existing_hooks
from hookcli.hooks.origin import origin


def here(function: Any) -> tuple[str, int]:
    """Where the tests' own source has a function, as a report names it."""
    return str(Path(inspect.getfile(function)).relative_to(Path.cwd())), inspect.getsourcelines(function)[1]


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


class Refusing(nn.Module):
    """Raises other errors than AttributeError for names that it does not know."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError(name)

    def forward(self) -> None:
        """Do nothing."""


def test_the_place_of_a_module_that_answers_for_all_names() -> None:
    found = origin(Refusing())
    assert (found.file, found.line) == here(Refusing.forward)
