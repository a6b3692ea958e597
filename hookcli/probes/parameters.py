"""Statistics of parameters and of floating-point buffers, before the run."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.parameter import is_lazy

from hookcli.hooks.select import selects_parameter
from hookcli.hooks.session import HookSession
from hookcli.probes.base import StatsProbe
from hookcli.probes.shared.unregistered import unregistered
from hookcli.table import Column, Reason, Skipped
from hookcli.table.columns.layouts import PARAMETERS
from hookcli.tensors.tree import type_text


class ParametersProbe(StatsProbe):
    """A row per parameter, and per buffer of floating-point numbers, with its values before the run.

    `kind` is parameter or buffer, `type` the class of its module. A tensor of several names has one row, of its first.
    """

    name = "parameters"
    columns: Sequence[Column] = PARAMETERS
    watches_parameters = True

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
