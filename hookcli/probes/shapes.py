"""The shapes that go in and come out of each module, its parameters and its multiply-accumulates."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from hookcli.hooks import HookEvent, HookSession
from hookcli.probes.base import Probe, unmeasured
from hookcli.probes.sizes import count_parameters, packed_parameters
from hookcli.probes.unseen import UnseenTensors
from hookcli.report import Column, Row, Skipped
from hookcli.tree import dtype_text, lone, shape_of


class _Counter(FlopCounterMode):
    """PyTorch's counter, which also remembers the operators of other libraries that it has no formula for."""

    def __init__(self) -> None:
        settings: dict[str, Any] = {"display": False}
        if "skip_unsupported" in inspect.signature(FlopCounterMode).parameters:
            settings["skip_unsupported"] = True  # run higher-order operators that it can't count, and say which
        super().__init__(**settings)
        self.unknown: set[str] = set()

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        # PyTorch's own operators without a formula are elementwise or move data: by its convention they count 0.
        if func_packet not in self.flop_registry and not str(func_packet).startswith(("aten.", "prim")):
            self.unknown.add(str(func_packet).replace(".", "::", 1))
        counted: Any = super()._count_flops  # untyped
        return counted(func_packet, out, args, kwargs)

    @property
    def macs(self) -> int:
        """Multiply-accumulates so far: half the FLOPs, as torchvision and the literature count them."""
        return int(self.get_total_flops()) // 2


@dataclass(slots=True)
class _Call:
    """One call of a module: what went in, what came out (None until it returned), the counter before and after."""

    fqn: str
    module: nn.Module
    call: int
    index: int
    inputs: list[list[int]]
    started: int
    outputs: list[tuple[str, list[int], str]] = field(default_factory=list)
    macs: int | None = None
    edited: str = ""


class ShapesProbe(Probe):
    """A row per call of a module (and per tensor of a nested output), in the order in which modules are entered.

    `params` counts the module's parameters and those of its parts, each tensor once; `macs` what ran inside the call.
    Where an output is nested, its first row carries both and the others None, so that sums stay right.
    Costs are counted by `torch.utils.flop_counter` with the fused attention path off (it has no formula there).
    """

    name = "shapes"
    values = False
    fastpath = False
    columns = (
        Column("fqn", "Layer"),
        Column("type", "Type"),
        Column("depth", "Depth"),
        Column("call", "Call"),
        Column("index", "Order"),
        Column("path", "Path"),
        Column("input_shape", "Input"),
        Column("output_shape", "Output"),
        Column("dtype", "Dtype"),
        Column("params", "Params", "parameters"),
        Column("trainable", "Trainable", "parameters"),
        Column("macs", "MACs", "multiply-accumulates"),
    )

    def __init__(self) -> None:
        self._calls: dict[tuple[str, int], _Call] = {}
        self._unseen = UnseenTensors()

    def attach(self, session: HookSession) -> None:
        self.session = session
        self._counter = session.enter_context(_Counter())
        session.forward_pre(self._enter)
        session.forward(self._leave)

    def _enter(self, event: HookEvent) -> None:
        inputs = [shape_of(x) for _, x in self._unseen.arguments(event.fqn, event.args, event.kwargs)]
        assert event.module is not None
        call = _Call(event.fqn, event.module, event.call, event.index, inputs, self._counter.macs, edited=event.edited)
        self._calls[event.fqn, event.call] = call

    def _leave(self, event: HookEvent) -> None:
        call = self._calls[event.fqn, event.call]
        call.macs = self._counter.macs - call.started
        call.edited = ", ".join(filter(None, [call.edited, event.edited]))
        returned = self._unseen.leaves(event.fqn, event.output)
        call.outputs = [(path, shape_of(tensor), dtype_text(tensor)) for path, tensor in returned]

    def rows(self) -> list[Row]:
        return [row for call in self._calls.values() for row in self._rows_of(call)]

    def _rows_of(self, call: _Call) -> Iterable[Row]:
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
                    "macs": call.macs if first else None,
                    **({"edited": call.edited} if call.edited else {}),
                }
            )

    def totals(self) -> Mapping[str, Any]:
        model = self.session.model
        params, trainable = count_parameters(model)
        tensors = [*(p for p in model.parameters() if not is_lazy(p)), *packed_parameters(model)]
        size = sum(x.numel() * x.element_size() for x in tensors)
        return {"params": params, "trainable": trainable, "param_bytes": size, "macs": self._forward_macs()}

    def _forward_macs(self) -> int:
        """Of one forward of the model; the counter runs on through a backward pass and further passes."""
        root = self._calls.get(("", 0))
        return self._counter.macs if root is None or root.macs is None else root.macs

    def skipped(self) -> list[Skipped]:
        unknown = self._counter.unknown | set(getattr(self._counter, "_unsupported_ops", ()))
        costs = [Skipped("", f"no known cost for {', '.join(sorted(unknown))}: MACs not counted")] if unknown else []
        lazy = [
            Skipped(n, "lazy: its size is not known yet")
            for n, p in self.session.model.named_parameters()
            if is_lazy(p)
        ]
        return [*costs, *lazy, *self._unseen.skipped(), *unmeasured(self.session)]
