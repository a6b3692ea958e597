"""The shapes of each module's inputs and outputs, its parameters and its multiply-accumulates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from hookcli.hooks.events import HookEvent
from hookcli.hooks.function_calls import FunctionCalls
from hookcli.hooks.session import HookSession
from hookcli.hooks.unhooked import compiled_parts
from hookcli.probes.base import Probe, unmeasured
from hookcli.probes.shared.costs import Costs, matters
from hookcli.probes.shared.parameter_counts import count_parameters, packed_parameters
from hookcli.probes.shared.unreachable import UnreachableTensors
from hookcli.report import Row, Skipped
from hookcli.report.columns import SHAPES
from hookcli.tensors.tree import dtype_text, lone, shape_of


@dataclass(slots=True)
class _Call:
    """One call of a module: what went in, what came out, and its first and last position in the log."""

    fqn: str
    module: nn.Module
    call: int
    index: int
    inputs: list[list[int]]
    began: int
    outputs: list[tuple[str, list[int], str]] = field(default_factory=list)
    ended: int | None = None
    edited: str = ""


class ShapesProbe(Probe):
    """A row per call of a module (and per tensor of a nested output), in the order in which modules are entered.

    `params` counts the module's parameters and those of its parts, each tensor once; `macs` what ran inside the call.
    Where an output is nested, its first row carries both and the others None, so that sums stay right.
    Nothing is counted while the model runs: the calls that it makes of PyTorch's functions are remembered by their
    shapes, from which `costs` computes the figures afterwards.
    """

    name = "shapes"
    values = False
    fastpath = False
    columns = SHAPES

    def __init__(self) -> None:
        self._calls: dict[tuple[str, int], _Call] = {}
        self._unseen = UnreachableTensors()
        self._functions = FunctionCalls(matters)
        self._cost = Costs()

    def attach(self, session: HookSession) -> None:
        """Register forward pre-hooks and forward hooks, and count operations."""
        self.session = session
        self._functions.past_compiled = session.follow
        session.enter_context(self._functions)
        session.forward_pre(self._enter)
        session.forward(self._leave)

    def _enter(self, event: HookEvent) -> None:
        inputs = [shape_of(x) for _, x in self._unseen.arguments(event.fqn, event.args, event.kwargs)]
        assert event.module is not None
        began = len(self._functions.log)
        call = _Call(event.fqn, event.module, event.call, event.index, inputs, began, edited=event.edited)
        self._calls[event.fqn, event.call] = call

    def _leave(self, event: HookEvent) -> None:
        call = self._calls[event.fqn, event.call]
        call.ended = len(self._functions.log)
        call.edited = ", ".join(filter(None, [call.edited, event.edited]))
        returned = self._unseen.leaves(event.fqn, event.output)
        call.outputs = [(path, shape_of(tensor), dtype_text(tensor)) for path, tensor in returned]

    def rows(self) -> list[Row]:
        """Return the rows in the order in which modules were entered."""
        spent = self._spent()
        return [row for call in self._calls.values() for row in self._rows_of(call, _between(spent, call))]

    def _rows_of(self, call: _Call, macs: int | None) -> Iterable[Row]:
        params, trainable = count_parameters(call.module)
        for number, (path, shape, dtype) in enumerate(call.outputs or [("", None, None)]):
            first = number == 0
            yield Row(
                {
                    "fqn": call.fqn,
                    "type": type(call.module).__name__,
                    "depth": call.fqn.count(".") + 1 if call.fqn else 0,
                    "call": call.call,
                    "index": call.index,
                    "path": path,
                    # a lone input is its shape; several are a list of shapes
                    "input_shape": lone(call.inputs),
                    "output_shape": shape,
                    "dtype": dtype,
                    "params": params if first else None,
                    "trainable": trainable if first else None,
                    "macs": macs if first else None,
                    **({"edited": call.edited} if call.edited else {}),
                }
            )

    def totals(self) -> Mapping[str, Any]:
        """Return the model's parameters and multiply-accumulates."""
        model = self.session.model
        params, trainable = count_parameters(model)
        tensors = [*(p for p in model.parameters() if not is_lazy(p)), *packed_parameters(model)]
        size = sum(x.numel() * x.element_size() for x in tensors)
        return {"params": params, "trainable": trainable, "param_bytes": size, "macs": self._forward_macs()}

    def _spent(self) -> list[int]:
        """The multiply-accumulates before each of the calls that were remembered, and in the end."""
        costs = [self._cost(signature)[0] for signature in self._functions.signatures]
        return list(accumulate((costs[number] for number in self._functions.log), initial=0))

    def _forward_macs(self) -> int:
        """The multiply-accumulates of one forward of the model; further passes are remembered, too."""
        spent = self._spent()
        root = self._calls.get(("", 0))
        macs = _between(spent, root) if root else None
        return spent[-1] if macs is None else macs

    def skipped(self) -> list[Skipped]:
        """Return modules that did not run and operations of unknown cost."""
        lazy = [
            Skipped(n, "lazy: its size is not known yet")
            for n, p in self.session.model.named_parameters()
            if is_lazy(p)
        ]
        return [*self._uncounted(), *lazy, *self._unseen.skipped(), *unmeasured(self.session)]

    def _uncounted(self) -> Iterable[Skipped]:
        """Operations inside modules that have no known cost."""
        log = self._functions.log
        within = {number for call in self._calls.values() if not call.fqn for number in log[call.began : call.ended]}
        ran = within if ("", 0) in self._calls else set(log)
        unknown = {
            name for call, number in self._functions.signatures.items() if number in ran for name in self._cost(call)[1]
        }
        if self.session.follow and compiled_parts(self.session.model):
            unknown.add("compiled parts")
        if unknown:
            yield Skipped("", f"no known cost for {', '.join(sorted(unknown))}: MACs not counted")


def _between(spent: list[int], call: _Call) -> int | None:
    return None if call.ended is None else spent[call.ended] - spent[call.began]
