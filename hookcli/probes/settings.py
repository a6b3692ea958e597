"""The settings of modules: the arguments of their constructors, as far as modules keep them."""

from __future__ import annotations

import re

from torch import nn

from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.table import Row, columns_named
from hookcli.tensors.tree import type_text

_KNOWN = ("torch.nn.", "torchvision.")
_DECLARED = re.compile(r"\b(\w+)=")


class SettingsProbe(Probe):
    """A row per module that has settings: its public attributes that are numbers, words, flags or tuples of these.

    Modules of torch.nn and torchvision keep there what they were made with. Those of other classes may keep counters
    and paths, too, so only what they declare counts: what `extra_repr` shows as `name=`, and `__constants__`.
    """

    name = "settings"
    merges_batches = True
    columns = columns_named("fqn", "type", "settings")

    def attach(self, session: HookSession) -> None:
        modules = [(fqn, type_text(module), settings_of(module)) for fqn, module in session.model.named_modules()]
        self._rows = [Row({"fqn": fqn, "type": kind, "settings": values}) for fqn, kind, values in modules if values]

    def batch_ended(self) -> None:
        """Keep the settings, which were read before the run."""

    def rows(self) -> list[Row]:
        return self._rows


def settings_of(module: nn.Module, *, floats: bool = False) -> dict[str, object]:
    """The settings of one module.

    `floats`: all its floats, too, which between two models that have not run yet are no counters: the epsilon of a
    normalization that declares nothing.
    """
    attributes = {name: value for name, value in sorted(vars(module).items()) if not name.startswith("_")}
    if not type(module).__module__.startswith(_KNOWN):
        declared = _declared(module)
        attributes = {
            name: value
            for name, value in attributes.items()
            if name in declared or (floats and isinstance(value, float))
        }
    return {name: value for name, value in attributes.items() if name != "training" and _is_plain(value)}


def _declared(module: nn.Module) -> set[str]:
    try:
        shown = module.extra_repr()
    except KeyboardInterrupt:
        raise
    except BaseException:  # the model's own code, which nobody else may have called
        shown = ""
    return {*getattr(module, "__constants__", ()), *_DECLARED.findall(shown)}


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
