"""Statistics of parameters and of floating-point buffers, before the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
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
        """Measure the tensors."""
        self.session = session
        first: dict[int, str] = {}
        for kind, fqn, x in _held(session):
            if not selects_parameter(session.select, session.model, fqn):
                continue
            if first.setdefault(id(x), fqn) != fqn:
                self._skipped[Skipped(fqn, f"tied to {first[id(x)]}", kind=Reason.TIED)] = None
            elif is_lazy(x):
                self.skip(fqn, "lazy: it has no values before its module has run once")
            else:
                self.take(self._values(kind, fqn, x, len(first) - 1), x)

    def _values(self, kind: str, fqn: str, x: Tensor, index: int) -> dict[str, object]:
        owner = self.session.model.get_submodule(fqn.rpartition(".")[0])
        return {"fqn": fqn, "kind": kind, "type": type_text(owner), "index": index, "requires_grad": x.requires_grad}

    def skipped(self) -> list[Skipped]:
        """Return the parameters without a row, each with its reason."""
        return [*self._skipped, *(item.skipped() for item in unregistered(self.session))]


def _held(session: HookSession) -> Iterator[tuple[str, str, Tensor]]:
    for fqn, parameter in session.model.named_parameters(remove_duplicate=False):
        yield "parameter", fqn, parameter
    for fqn, buffer in session.model.named_buffers(remove_duplicate=False):
        if buffer.is_floating_point() or buffer.is_complex():
            yield "buffer", fqn, buffer
