"""The inventory of a run: hooks, parameters, calls and outputs, measured in one pass for checks to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.hooks.events import HookEvent
from hookcli.hooks.existing import ExistingHook, existing_hooks
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.operators.calls import LOSS
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.probes.shared.call_meters import SavedMemory, on_other_devices
from hookcli.probes.shared.dead_units import DeadUnits
from hookcli.probes.shared.inventory_part import (
    ChangedInputs,
    DoubledActivations,
    InventoryPart,
    TensorSources,
    numbers_of,
)
from hookcli.probes.shared.module_facts import FirstCalls, ModuleInputs, count_parameters, used_without_call
from hookcli.probes.shared.unmeasured import never_called
from hookcli.probes.shared.unregistered import PlainWeights, unregistered
from hookcli.table import STATS_COLUMNS, Row, columns_named
from hookcli.table.merge import BatchRows
from hookcli.tensors import tree
from hookcli.tensors.checksum import checksum
from hookcli.tensors.chunks import PendingFigures
from hookcli.tensors.stats import measure, resolve

# Those on state dicts and registrations fire outside of forward and backward.
_FIRING = (
    *("forward_pre", "forward", "full_backward_pre", "full_backward", "backward"),
    *("tensor_grad", "post_accumulate_grad"),
)
_TORCHS_OWN = ("torch/", "torchvision/")  # files of weight_norm, spectral_norm, pruning: part of the model


class InventoryProbe(Probe):
    """Everything that checks read besides activations and gradients. `kind` tells the rows apart:

    - `hook`: a hook that the model already has;
    - `parameter`, `buffer`: statistics of its values before the run;
    - `input`, `output`: a tensor that the model received or returned;
    - `units`: dead and saturated channels of an activation;
    - `never_called`: a module that was not called;
    - `called`: see `FirstCalls`; `received`, `normalized`: see `ModuleInputs`;
    - `made`, where operators are watched: see `TensorSources`;
    - `changed`, `doubled`, `plain_weight`: see `ChangedInputs`, `DoubledActivations`, `PlainWeights`;
    - `unregistered`: a module or parameter that PyTorch does not know of;
    - `bits`, on request: a checksum of an output or of a parameter's gradient.

    With `memory`, `totals` has the bytes that autograd saves for backward. A `brief` inventory has parameters, buffers,
    inputs, outputs and which modules were called. Attach this probe before others: it would take their hooks for the
    model's.
    """

    name = "inventory"
    merges_batches = True
    fastpath = False  # modules within fused attention never run
    operators = True
    columns = (*columns_named("kind", "fqn", "type", fqn="Name"), *STATS_COLUMNS)
    grouping = "list"
    session: HookSession | Any = None
    """The session that it is attached to; None where a Ctrl-C has ended `attach`."""

    def __init__(self, *, backward: bool, memory: bool = False, bits: bool = False, brief: bool = False) -> None:
        self.needs_backward = backward
        self._counts_memory, self._sums_bits, self._brief = memory, bits, brief
        self._hooks: list[ExistingHook] = []
        self._held: list[tuple[dict[str, object], PendingFigures]] = []
        self._taken: list[tuple[dict[str, Any], PendingFigures]] = []
        self._batches = BatchRows()
        self._outputs: list[dict[str, object]] = []
        self._bits: list[tuple[dict[str, object], Tensor]] = []
        self._kept = 0

    def attach(self, session: HookSession) -> None:
        hooks = () if self._brief else existing_hooks(session.model)
        self._hooks = [h for h in hooks if h.kind in _FIRING and not (h.file or "").startswith(_TORCHS_OWN)]
        self._held = [(values, measure(tensor)) for values, tensor in _held(session.model)]
        further = (ModuleInputs, *((TensorSources,) if session.ops else ()), ChangedInputs, DoubledActivations)
        kinds = (FirstCalls,) if self._brief else (DeadUnits, FirstCalls, *further, PlainWeights)
        self._parts: list[InventoryPart] = [kind(session) for kind in kinds]
        self.session = session
        session.forward_pre(self._enter)
        session.forward(self._leave)
        if self._sums_bits and self.needs_backward:
            session.post_accumulate_grad(lambda event: self._sum("gradient", event, "", event.grad))
        if self._counts_memory:
            self._memory = SavedMemory([*session.model.parameters(), *session.model.buffers()])
            session.on(HookKind.SAVED_TENSOR_PACK, self._keep)

    def _enter(self, event: HookEvent) -> None:
        for part in self._parts:
            part.enter(event)
        if event.fqn == "" and event.call == 0:
            for path, x in tree.arguments(event.args, event.kwargs):
                values = {"kind": "input", "fqn": "", "path": path, "shape": tree.shape_of(x)}
                self._taken.append((values, measure(x)))

    def _leave(self, event: HookEvent) -> None:
        if event.fqn.startswith(LOSS):  # computed from what the model returned
            return
        for part in self._parts:
            part.leave(event)
        if event.fqn == "" and event.call == 0 and not self.session.batch_number:
            self._outputs = [
                {"kind": "output", "fqn": "", "path": path, "shape": tree.shape_of(x), "dtype": tree.dtype_text(x)}
                for path, x in tree.leaves(event.output)
            ]
        if self._sums_bits:
            for path, x in tree.leaves(event.output):
                self._sum("output", event, path, x)

    def _sum(self, of: str, event: HookEvent, path: str, x: Tensor | None) -> None:
        if x is not None and tree.is_plain(x) and not self.session.batch_number:
            values = {"kind": "bits", "fqn": event.fqn, "of": of, "call": event.call, "path": path}
            self._bits.append((values, checksum(x)))

    def _keep(self, event: HookEvent) -> None:
        assert event.tensor is not None
        self._kept += 0 if self.session.batch_number else self._memory.keep(event.tensor)

    def batch_ended(self) -> None:
        """Merge the statistics of the batch; outputs, checksums and memory are kept from the first."""
        self._batches.add(_measured(self._taken))
        self._taken.clear()
        for part in self._parts:
            part.batch_ended()

    def rows(self) -> list[Row]:
        sums = numbers_of([total for _, total in self._bits])
        hooks = []
        for hook in self._hooks:
            at = hook.file if hook.line is None else f"{hook.file}:{hook.line}"
            values: dict[str, object] = {"kind": "hook", "fqn": hook.fqn, "type": hook.type, "hook": hook.kind}
            hooks.append(Row(values | {"name": f"{hook.function} ({at})"}))
        never: list[dict[str, object]] = []
        for item in never_called(self.session):
            module = self.session.model.get_submodule(item.fqn)
            params, trainable = count_parameters(module)
            builtin = type(module).__module__.startswith("torch.nn.")
            used = builtin and not params and used_without_call(item.fqn, self.session.model)
            values = {"kind": "never_called", "fqn": item.fqn, "type": type(module).__name__, "params": params}
            never.append(values | {"trainable": trainable, "builtin": builtin, "used": used})
        return [
            *hooks,
            *_measured(self._held),
            *(self._batches.rows() or _measured(self._taken)),
            *(Row(values) for values in self._outputs),
            *(Row(values) for part in self._parts for values in part.rows()),
            *(Row(values) for values in never),
            *(Row({"kind": "unregistered", **asdict(item)}) for item in unregistered(self.session)),
            *(Row(values | {"sum": total}) for (values, _), total in zip(self._bits, sums, strict=True)),
        ]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        return on_other_devices(self.session) if self._counts_memory else []

    def totals(self) -> Mapping[str, object]:
        model = self.session.model
        params, trainable = count_parameters(model)
        modules = sum(1 for _ in model.modules())
        kept = {"kept_bytes": self._kept} if self._counts_memory else {}
        return {"params": params, "trainable": trainable, "modules": modules} | kept


def _held(model: nn.Module) -> Iterator[tuple[dict[str, object], Tensor]]:
    for kind, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for fqn, tensor in named:
            if not is_lazy(tensor):
                values = {"kind": kind, "fqn": fqn, "shape": tree.shape_of(tensor), "dtype": tree.dtype_text(tensor)}
                yield values | {"trainable": tensor.requires_grad}, tensor


def _measured(taken: Sequence[tuple[dict[str, object], PendingFigures]]) -> list[Row]:
    measured = resolve([pending for _, pending in taken])
    return [Row(values, stats) for (values, _), stats in zip(taken, measured, strict=True)]
