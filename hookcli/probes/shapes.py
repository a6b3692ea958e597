"""The shapes of each module's and operator's inputs and outputs, parameters, multiply-accumulates, and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from hookcli.errors import UsageError, in_brief
from hookcli.hooks.events import HookEvent
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.observing_mode import FunctionCalls, signature_of
from hookcli.hooks.operators.calls import is_whole
from hookcli.hooks.parts import compiled_parts
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import version_of
from hookcli.probes.base import Probe, further_values
from hookcli.probes.fallbacks import fails_without_gradients
from hookcli.probes.shared.call_meters import (
    Reading,
    SavedMemory,
    ShapeCall,
    Traffic,
    of_layer,
    of_operator,
    on_other_devices,
    recomputed,
)
from hookcli.probes.shared.costs import cost, matters, mixed_product
from hookcli.probes.shared.module_facts import (
    acts_in_training,
    containers,
    count_parameters,
    packed_parameters,
    tied_names,
    training_bytes,
)
from hookcli.probes.shared.unmeasured import UnreachableTensors, unmeasured
from hookcli.table import Row, Skipped
from hookcli.table.columns.layouts import SHAPES
from hookcli.table.formatting import listed
from hookcli.table.tree import Tree
from hookcli.tensors import tree
from hookcli.tensors.tree import lone

_LISTED = 3  # tied weights


class ShapesProbe(Probe):
    """A row per call of a module or operator (and per tensor of a nested output), in the order of the calls.

    `params` counts the parameters of the module and its parts, each tensor once; `macs` what ran inside the call,
    `kept` the memory that it saved for backward. Where an output is nested, its first row carries them and the others
    None, so that sums stay right. Nothing is counted while the model runs: the calls that it makes of PyTorch's
    functions are remembered by their shapes, from which `costs` computes the figures afterwards. Where operators have
    rows, `read_bytes` and `written_bytes` are what they move; a module's add up all that ran inside it.

    For `kept` the forward records autograd's graph; where another probe looks at values, only if that one needs it. A
    model that can't run so is run again without: `memory=False`.
    """

    name = "shapes"
    values = False
    records_graph = True
    fastpath = False
    columns = SHAPES
    operators = True

    def __init__(self, *, memory: bool = True) -> None:
        self.records_graph = memory
        self._memory: SavedMemory | None = None
        self._kept = 0
        self._refused = ""
        self._moved = Traffic()
        self._last = Reading()
        self._calls: dict[tuple[str, int], ShapeCall] = {}
        self._unseen = UnreachableTensors()
        self._functions = FunctionCalls(matters)
        self._cost = cache(cost)

    def attach(self, session: HookSession) -> None:
        self.session = session
        self._tree = Tree(containers(session.model))
        self._functions.past_compiled = session.model if session.follow else None
        session.stack.enter_context(self._functions)
        session.forward_pre(self._enter)
        session.forward(self._leave)
        if self.records_graph and torch.is_grad_enabled():
            self._memory = SavedMemory([*session.model.parameters(), *session.model.buffers()])
            session.on(HookKind.SAVED_TENSOR_PACK, self._keep)

    def instead(self, error: Exception) -> Probe | None:
        """Return a probe that runs the forward without gradients, unless gradients can't be the reason."""
        if self._memory is None or isinstance(error, UsageError) or fails_without_gradients(error):
            return None
        other = ShapesProbe(memory=False)
        other._refused = in_brief(error.__cause__ or error)
        return other

    def in_callers_run(self) -> Probe:
        """Return a probe without hooks on the tensors that the caller's program saves."""
        return ShapesProbe(memory=False)

    def _keep(self, event: HookEvent) -> None:
        assert event.tensor is not None and self._memory is not None
        if not recomputed(self.session.calls.running):
            self._kept += self._memory.keep(event.tensor)

    def _read(self) -> Reading:
        """The meters as they stand; an operator's part is what was added since the event before it."""
        self._last = Reading(len(self._functions.log), self._kept, self._moved)
        return self._last

    def _enter(self, event: HookEvent) -> None:
        received = self._unseen.arguments(event.fqn, event.args, event.kwargs)
        call = ShapeCall.of(event, received, self._read(), further_values(event))
        if call.module is not None and self.session.ops and is_whole(call.module):
            call.versions = [version_of(x) for _, x in tree.arguments(event.args, event.kwargs)]
        self._calls[event.fqn, event.call] = call

    def _leave(self, event: HookEvent) -> None:
        if event.operator is not None:
            call = ShapeCall.of(event, tree.arguments(event.args, event.kwargs), self._last, further_values(event))
            if self.session.ops == "aten":
                call.signature = signature_of(event.operator.function, event.args, event.kwargs, event.output)
            self._moved += of_operator(event)
            call.leave(tree.leaves(event.output), self._read())
            self._calls[event.fqn, event.call] = call
            return
        call = self._calls[event.fqn, event.call]
        if call.versions is not None:
            self._moved += of_layer(event, call.versions)
        if event.edited:
            call.further["edited"] = ", ".join(filter(None, [call.further.get("edited"), event.edited]))
        call.leave(self._unseen.leaves(event.fqn, event.output), self._read())

    def rows(self) -> list[Row]:
        spent, whole = self._spent(), self.totals()
        return [row for call in self._calls.values() for row in self._rows_of(call, spent, whole)]

    def _rows_of(self, call: ShapeCall, spent: list[int], whole: Mapping[str, int]) -> Iterable[Row]:
        macs = self._cost(call.signature)[0] if call.signature else _between(spent, call)
        params, trainable = (None, None) if call.module is None else count_parameters(call.module)
        figures = {
            "params": params,
            "params_share": params / whole["params"] if params is not None and whole["params"] else None,
            "trainable": trainable,
            "macs": macs,
            "macs_share": macs / whole["macs"] if macs is not None and whole["macs"] else None,
            "kept": call.kept if "kept_bytes" in whole else None,
            **(call.moved if self.session.ops else {}),
        }
        for number, (path, shape, dtype) in enumerate(call.outputs or [("", None, None)]):
            yield Row(
                {
                    "fqn": call.fqn,
                    "type": call.type,
                    "depth": self._tree[call.fqn].level,
                    "call": call.call,
                    "index": call.index,
                    "path": path,
                    # a lone input is its shape; several are a list of shapes
                    "input_shape": lone(call.inputs),
                    "output_shape": shape,
                    "dtype": dtype,
                    **(figures if number == 0 else dict.fromkeys(figures)),
                    **({"input_names": call.names} if any(call.names) else {}),
                    **call.further,
                }
            )

    def totals(self) -> Mapping[str, Any]:
        """Return parameters, multiply-accumulates, and unless all is frozen the bytes of training with AdamW;
        `kept_mode` if train mode differs."""
        model = self.session.model
        params, trainable = count_parameters(model)
        tensors = [*(p for p in model.parameters() if not is_lazy(p)), *(x for _, x in packed_parameters(model))]
        size = sum(x.numel() * x.element_size() for x in tensors)
        spent, root = self._spent(), self._calls.get(("", 0))  # the first forward; further ones are remembered, too
        in_root = _between(spent, root) if root else None
        macs = {"macs": spent[-1] if in_root is None else in_root}
        kept_in_root = self._kept if root is None or root.kept is None else root.kept
        training = training_bytes(model)
        measured = self._memory is not None and (training or kept_in_root)
        kept: dict[str, object] = {"kept_bytes": kept_in_root} if measured else {}
        if kept and not model.training and any(map(acts_in_training, model.modules())):
            kept["kept_mode"] = "eval"
        return {"params": params, "trainable": trainable, "param_bytes": size, **training, **kept, **macs}

    def _spent(self) -> list[int]:
        """The multiply-accumulates before each of the calls that were remembered, and in the end."""
        costs = [self._cost(signature)[0] for signature in self._functions.signatures]
        return list(accumulate((costs[number] for number in self._functions.log), initial=0))

    def skipped(self) -> list[Skipped]:
        lazy = [n for n, p in self.session.model.named_parameters() if is_lazy(p)]
        unknown = [Skipped(name, "lazy: its size is not known yet") for name in lazy]
        if self._refused:
            unknown.append(Skipped("", f"memory kept for backward: fails with gradients on ({self._refused})"))
        return [*self._uncounted(), *unknown, *self._unseen.skipped(), *unmeasured(self.session)]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        """Notes on tied weights, what the meta device lets through, and memory that other devices don't keep so."""
        tied = [f"{name} (tied with {first})" for name, first in tied_names(self.session.model).items()]
        once = [f"counted once in the totals: {listed(tied, _LISTED)}"] if tied else []
        on_meta = any(p.is_meta for p in self.session.model.parameters())
        mixed = mixed_product(self._functions.signatures) if on_meta else []
        return [*once, *mixed, *([] if self._memory is None else on_other_devices(self.session))]

    def _uncounted(self) -> Iterable[Skipped]:
        log = self._functions.log
        roots = [call for call in self._calls.values() if not call.fqn]
        within = {number for call in roots for number in log[call.before.calls : call.after and call.after.calls]}
        ran = within if ("", 0) in self._calls else set(log)
        unknown = {
            name for call, number in self._functions.signatures.items() if number in ran for name in self._cost(call)[1]
        }
        if self.session.follow and compiled_parts(self.session.model):
            unknown.add("compiled parts")
        if unknown:
            yield Skipped("", f"no known cost for {', '.join(sorted(unknown))}: MACs not counted")


def _between(spent: list[int], call: ShapeCall) -> int | None:
    return None if call.after is None else spent[call.after.calls] - spent[call.before.calls]
