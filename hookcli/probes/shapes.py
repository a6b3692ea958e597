"""The shapes of each module's inputs and outputs, its parameters, multiply-accumulates and memory kept for backward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hookcli.errors import UsageError, in_brief
from hookcli.hooks.events import HookEvent
from hookcli.hooks.function_calls import FunctionCalls, Items, Shape, Signature
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.session import HookSession
from hookcli.hooks.unhooked import compiled_parts
from hookcli.probes.base import Probe
from hookcli.probes.fallbacks import fails_without_gradients
from hookcli.probes.shared.containers import containers
from hookcli.probes.shared.costs import Costs, matters
from hookcli.probes.shared.module_behavior import acts_in_training
from hookcli.probes.shared.parameter_counts import count_parameters, packed_parameters, training_bytes
from hookcli.probes.shared.saved_memory import SavedMemory, on_other_devices, recomputed
from hookcli.probes.shared.unmeasured import unmeasured
from hookcli.probes.shared.unreachable import UnreachableTensors
from hookcli.report import Row, Skipped
from hookcli.report.columns import SHAPES
from hookcli.report.levels import Levels
from hookcli.tensors.tree import dtype_text, keyword, lone, shape_of


@dataclass(slots=True)
class _Call:
    """One call of a module: what went in, what came out, and the log's and the saved bytes' length before and after."""

    fqn: str
    module: nn.Module
    call: int
    index: int
    inputs: list[list[int]]
    names: list[str]
    began: int
    kept_before: int
    outputs: list[tuple[str, list[int], str]] = field(default_factory=list)
    ended: int | None = None
    kept_after: int = 0
    edited: str = ""


class ShapesProbe(Probe):
    """A row per call of a module (and per tensor of a nested output), in the order in which modules are entered.

    `params` counts the module's parameters and those of its parts, each tensor once; `macs` what ran inside the call,
    `kept` the memory that it saved for backward. Where an output is nested, its first row carries them and the others
    None, so that sums stay right. Nothing is counted while the model runs: the calls that it makes of PyTorch's
    functions are remembered by their shapes, from which `costs` computes the figures afterwards.

    For `kept` the forward records autograd's graph; where another probe looks at values, only if that one needs it. A
    model that can't run so is run again without: `memory=False`.
    """

    name = "shapes"
    values = False
    records_graph = True
    fastpath = False
    columns = SHAPES

    def __init__(self, *, memory: bool = True) -> None:
        self.records_graph = memory
        self._memory: SavedMemory | None = None
        self._kept = 0
        self._refused = ""
        self._calls: dict[tuple[str, int], _Call] = {}
        self._unseen = UnreachableTensors()
        self._functions = FunctionCalls(matters)
        self._cost = Costs()

    def attach(self, session: HookSession) -> None:
        """Register forward pre-hooks and forward hooks, and count operations and saved tensors."""
        self.session = session
        self._levels = Levels(containers(session.model))
        self._functions.past_compiled = session.follow
        session.enter_context(self._functions)
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

    def _enter(self, event: HookEvent) -> None:
        received = self._unseen.arguments(event.fqn, event.args, event.kwargs)
        assert event.module is not None
        self._calls[event.fqn, event.call] = _Call(
            event.fqn,
            event.module,
            event.call,
            event.index,
            inputs=[shape_of(x) for _, x in received],
            names=[keyword(path) for path, _ in received],
            began=len(self._functions.log),
            kept_before=self._kept,
            edited=event.edited,
        )

    def _leave(self, event: HookEvent) -> None:
        call = self._calls[event.fqn, event.call]
        call.ended = len(self._functions.log)
        call.kept_after = self._kept
        call.edited = ", ".join(filter(None, [call.edited, event.edited]))
        returned = self._unseen.leaves(event.fqn, event.output)
        call.outputs = [(path, shape_of(tensor), dtype_text(tensor)) for path, tensor in returned]

    def rows(self) -> list[Row]:
        """Return the rows in the order in which modules were entered."""
        spent = self._spent()
        whole = self.totals()
        return [row for call in self._calls.values() for row in self._rows_of(call, _between(spent, call), whole)]

    def _rows_of(self, call: _Call, macs: int | None, whole: Mapping[str, int]) -> Iterable[Row]:
        params, trainable = count_parameters(call.module)
        figures = {
            "params": params,
            "params_share": params / whole["params"] if whole["params"] else None,
            "trainable": trainable,
            "macs": macs,
            "macs_share": macs / whole["macs"] if macs is not None and whole["macs"] else None,
            "kept": None if self._memory is None or call.ended is None else call.kept_after - call.kept_before,
        }
        for number, (path, shape, dtype) in enumerate(call.outputs or [("", None, None)]):
            first = number == 0
            yield Row(
                {
                    "fqn": call.fqn,
                    "type": type(call.module).__name__,
                    "depth": self._levels.depth(call.fqn),
                    "call": call.call,
                    "index": call.index,
                    "path": path,
                    # a lone input is its shape; several are a list of shapes
                    "input_shape": lone(call.inputs),
                    "output_shape": shape,
                    "dtype": dtype,
                    **(figures if first else dict.fromkeys(figures)),
                    **({"input_names": call.names} if any(call.names) else {}),
                    **({"edited": call.edited} if call.edited else {}),
                }
            )

    def totals(self) -> Mapping[str, Any]:
        """Return parameters, multiply-accumulates, bytes of training with AdamW; `kept_mode` if train mode differs."""
        model = self.session.model
        params, trainable = count_parameters(model)
        tensors = [*(p for p in model.parameters() if not is_lazy(p)), *packed_parameters(model)]
        size = sum(x.numel() * x.element_size() for x in tensors)
        macs = {"macs": self._forward_macs()}
        kept: dict[str, Any] = {"kept_bytes": self._forward_kept()} if self._memory is not None else {}
        if kept and not model.training and any(map(acts_in_training, model.modules())):
            kept["kept_mode"] = "eval"
        return {"params": params, "trainable": trainable, "param_bytes": size, **training_bytes(model), **kept, **macs}

    def _forward_kept(self) -> int:
        """The bytes that the model's first forward saved for backward."""
        root = self._calls.get(("", 0))
        return self._kept if root is None or root.ended is None else root.kept_after - root.kept_before

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
        refused = [Skipped("", f"memory kept for backward: fails with gradients on ({self._refused})")]
        lazy += refused if self._refused else []
        return [*self._uncounted(), *lazy, *self._unseen.skipped(), *unmeasured(self.session)]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        """Return notes on what the meta device lets through, and on memory that other devices don't keep so."""
        mixed = next(filter(None, map(_mixed, self._functions.signatures)), "") if self._on_meta() else ""
        said = [f"the meta device does not check dtypes ({mixed}); {_CHECKED}"] if mixed else []
        return [*said, *([] if self._memory is None else on_other_devices(self.session))]

    def _on_meta(self) -> bool:
        return any(p.is_meta for p in self.session.model.parameters())

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


def _mixed(call: Signature) -> str:
    """Name the dtypes that a matrix product mixes, if devices other than meta refuse it: integers and floats."""
    name = getattr(call.function, "__name__", "")
    if name not in _PRODUCTS or not isinstance(call.args, Items):
        return ""
    kinds = {x.dtype: x.dtype.is_floating_point or x.dtype.is_complex for x in call.args.items if isinstance(x, Shape)}
    named = " and ".join(str(dtype).removeprefix("torch.") for dtype in kinds)
    return f"{name} of {named}" if len({*kinds.values()}) > 1 else ""


_PRODUCTS = ("linear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d")
_CHECKED = "`hookcli activations` with the same input does"


def _between(spent: list[int], call: _Call) -> int | None:
    return None if call.ended is None else spent[call.ended] - spent[call.began]
