"""Statistics of parameters and floating-point buffers before the run, and the settings of modules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from hookcli.hooks.origin import origin
from hookcli.hooks.parts import selects_parameter
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe, StatsProbe
from hookcli.probes.shared.unregistered import unregistered
from hookcli.table import Column, Reason, Report, Row, Skipped, columns_named
from hookcli.table.columns.layouts import PARAMETERS
from hookcli.tensors.tree import type_text


class ParametersProbe(StatsProbe):
    """A row per parameter, and per buffer of floating-point numbers, with its values before the run.

    `kind` is parameter or buffer, `type` the class of its module. A tensor of several names has one row, of its first.
    """

    name = "parameters"
    columns: Sequence[Column] = PARAMETERS
    watches_parameters = True
    inside_compiled = True

    def __init__(self, *, hist: bool = True) -> None:
        super().__init__(hist=hist)

    def attach(self, session: HookSession) -> None:
        self.session = session
        first: dict[int, str] = {}
        model = session.model
        held = [("parameter", fqn, x) for fqn, x in model.named_parameters(remove_duplicate=False)]
        buffers = [("buffer", fqn, x) for fqn, x in model.named_buffers(remove_duplicate=False)]
        for kind, fqn, x in (*held, *(each for each in buffers if each[2].is_floating_point() or each[2].is_complex())):
            if not selects_parameter(session.select, model, fqn):
                continue
            if first.setdefault(id(x), fqn) != fqn:
                self._skipped[Skipped(fqn, f"tied to {first[id(x)]}", kind=Reason.TIED)] = None
            elif is_lazy(x):
                self.skip(fqn, "lazy: it has no values before its module has run once")
            else:
                type_ = type_text(model.get_submodule(fqn.rpartition(".")[0]))
                values = {"fqn": fqn, "kind": kind, "type": type_, "index": len(first) - 1}
                self.take(values | {"requires_grad": x.requires_grad}, x)

    def skipped(self) -> list[Skipped]:
        return [*self._skipped, *(item.skipped() for item in unregistered(self.session))]


_KNOWN = ("torch.nn.", "torchvision.")
_LONGEST = 80  # characters of an attribute for people
_FOR_PEOPLE = ("attributes", "source")
_DECLARED = re.compile(r"\b(\w+)=")


class SettingsProbe(Probe):
    """A row per module that has settings: its public attributes that are numbers, words, flags or tuples of these.

    Modules of torch.nn and torchvision keep there what they were made with. Other classes may keep counters
    and paths, too, so only declared attributes count: those that `extra_repr` shows as `name=`, and `__constants__`.
    `for_people` adds all that is plain, whatever declares it, and where the module's code begins.
    """

    name = "settings"
    merges_batches = True

    def __init__(self, *, for_people: bool = False) -> None:
        self._for_people = for_people
        more = columns_named(*_FOR_PEOPLE) if for_people else ()
        self.columns = (*columns_named("fqn", "type", "settings"), *more)

    def attach(self, session: HookSession) -> None:
        self._rows = []
        for fqn, module in session.model.named_modules():
            values = {"settings": settings_of(module)} | (for_people(module) if self._for_people else {})
            if any(values.values()):
                self._rows.append(Row({"fqn": fqn, "type": type_text(module), **values}))

    def batch_ended(self) -> None:
        """Keep the settings, which were read before the run."""

    def rows(self) -> list[Row]:
        return self._rows


def recorded_settings(model: nn.Module, name: str) -> Report:
    """The settings of a program's model for people. Calls none of the model's own code."""
    rows = [Row({"fqn": fqn, "type": type_text(module), **for_people(module)}) for fqn, module in model.named_modules()]
    return Report(SettingsProbe.name, name, columns_named("fqn", "type", *_FOR_PEOPLE), rows)


def for_people(module: nn.Module) -> dict[str, Any]:
    """Everything plain that a module of any class keeps, and the line of its `forward` outside PyTorch."""
    short: dict[str, object] = {}
    for name, value in vars(module).items():
        if name[:1] == "_" or name == "training":
            continue
        is_long = isinstance(value, (tuple, list, str)) and len(value) > _LONGEST
        if not is_long and _is_plain(value) and len(repr(value)) <= _LONGEST:
            short[name] = value
    code = origin(module)
    is_torch = code.line is None or code.file.startswith("torch/")
    return dict(zip(_FOR_PEOPLE, (short, None if is_torch else f"{code.file}:{code.line}"), strict=True))


def settings_of(module: nn.Module, *, floats: bool = False) -> dict[str, object]:
    """The settings of one module.

    `floats`: include all floats, such as the epsilon of a normalization that declares nothing. Before a run none of
    them is a counter.
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
        text = module.extra_repr()
    except KeyboardInterrupt:
        raise
    except BaseException:  # the model's own code, which nobody else may have called
        text = ""
    return {*getattr(module, "__constants__", ()), *_DECLARED.findall(text)}


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
