"""States of which a module has taken nothing: load_state_dict(strict=False) does not say that no name fits."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from hookcli.hooks.torch_private.modules import all_parts
from hookcli.tensors.weak import WeakIds


class LoadedStates:
    """The modules that were given a state with none of their names, and none that fits since."""

    def __init__(self) -> None:
        self._none: WeakIds[nn.Module, tuple[frozenset[object], str]] = WeakIds()
        self._accepted: WeakIds[nn.Module, frozenset[object]] = WeakIds()
        """The names of the last state of which a module has taken a part: the model's others may take nothing of it."""

    def note(self, module: nn.Module, state: object, keys: object) -> None:
        """Note a state that a module was given, and the keys that load_state_dict has returned."""
        missing, unexpected = (getattr(keys, name, None) for name in ("missing_keys", "unexpected_keys"))
        if not isinstance(state, Mapping) or missing is None or unexpected is None:
            return
        if not state or not missing or len(unexpected) < len(state):
            self._accepted[module] = frozenset(state)
            for one in [one for one, _ in self._none.items() if contains(one, module) or contains(module, one)]:
                del self._none[one]
            return
        of = f"none of the {len(state):,} names in the state of load_state_dict(strict=False) is one of"
        words = f"{of} {type(module).__name__}'s: it has {unexpected[0]}, and not {missing[0]}"
        self._none[module] = frozenset(state), words

    def words(self, model: nn.Module) -> str:
        """Words on such a state that a model, or a part of it, was given; "" if there is none."""
        accepted = {names for module, names in self._accepted.items() if contains(model, module)}
        of_model = (said for module, said in self._none.items() if contains(model, module))
        return next((words for names, words in of_model if names not in accepted), "")


def contains(module: nn.Module, part: nn.Module) -> bool:
    """True if a module is, or has, this part."""
    return any(one is part for one in all_parts(module))
