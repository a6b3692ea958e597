"""Every firing of every kind of hook, in the order in which PyTorch calls them, or counts of each kind by module."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.capabilities.trace.layout import COLUMNS
from hookcli.errors import OneTensorError, RefusedError, StateDictError, message_of
from hookcli.hooks.events import HookEvent
from hookcli.hooks.full_backward import paths_of_outputs, refuses_full_backward
from hookcli.hooks.kinds import FORWARD, FULL_BACKWARD, OPTIMIZER, REGISTRATION, SAVED_TENSOR, STATE_DICTS, HookKind
from hookcli.hooks.outside_runs import registrations
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.dynamo import preload
from hookcli.probes.base import Probe, further_values
from hookcli.probes.fallbacks import leave_out, left_out
from hookcli.probes.shared.call_meters import SavedMemory, recomputed
from hookcli.probes.shared.unmeasured import UnreachableTensors, unmeasured
from hookcli.table import Row, Skipped, columns_named
from hookcli.table.columns import declared
from hookcli.tensors import tree


class TraceProbe(Probe):
    """A row per firing, with the time in microseconds since the first one.

    `kinds` selects. `bytes` is the size of a tensor that is kept for backward, `kept` the memory that it adds to what
    is kept: 0 for parameters, buffers, memory that is kept already, and in a region that runs again in backward. With
    `summary` a row per module, with a count for each kind. Where a model can't be run under a kind of hooks, the trace
    goes without it, unless `insist`.
    """

    name = "trace"

    def __init__(
        self, kinds: Sequence[HookKind] = tuple(HookKind), *, insist: bool = False, summary: bool = False
    ) -> None:
        self.kinds = tuple(kinds)
        self.insist = insist
        self.summary = summary
        self.needs_backward = any(kind not in FORWARD for kind in self.kinds)
        self.grouping = "disjoint" if summary else "events"
        counts = []
        for kind in self.kinds:
            heading = str(kind)
            for long, short in _SHORT.items():  # the columns are narrow
                heading = heading.replace(long, short)
            counts.append(declared(kind, heading.replace("_", " "), "firings"))
        self.columns = (*columns_named("fqn", "type"), *counts, *columns_named("kept")) if summary else COLUMNS
        self._refused: dict[Skipped, None] = {}
        self._rows: list[dict[str, Any]] = []
        self._built: list[tuple[int, HookKind, nn.Module, str, Any]] = []
        self._unseen = UnreachableTensors()
        self._started = 0
        self._building = 0  # nanoseconds, until the run began

    def instead(self, error: Exception) -> Probe | None:
        """Return a probe without the kinds of hooks that made the model fail."""
        if isinstance(error, OneTensorError):
            other = self._without((), "")
            other.one_tensor = error
            return other
        cause = error.__cause__
        dropped: Sequence[HookKind] = ()
        if isinstance(error, RefusedError) or refuses_full_backward(cause):
            dropped = FULL_BACKWARD
        elif isinstance(cause, StateDictError):
            dropped = STATE_DICTS
        elif "saved tensor hooks" in message_of(cause or error):
            dropped = SAVED_TENSOR
        if self.insist or not set(dropped) & set(self.kinds):
            return None
        return self._without(dropped, str(error).partition("\n")[0].partition(";")[0])

    def in_callers_run(self) -> Probe:
        """Return a probe without the kinds that may make the caller's step fail."""
        asked = set(self.kinds)
        if self.insist or not asked & set(_MAY_RAISE) or asked <= set(_MAY_RAISE):
            return self
        return self._without(_MAY_RAISE, "left out: such a hook can make your own step fail; capture shows it")

    def _without(self, dropped: Sequence[HookKind], reason: str) -> TraceProbe:
        other = TraceProbe([kind for kind in self.kinds if kind not in dropped], summary=self.summary)
        other._refused = self._refused | dict.fromkeys(Skipped("", reason, k) for k in dropped if k in self.kinds)
        other.insist, other.one_tensor = self.insist, self.one_tensor
        other._built, other._building = self._built, self._building
        return other

    # The building of the model.

    def building(self) -> AbstractContextManager[object]:
        """Record registrations of modules, parameters and buffers in the block, if they were asked for."""
        if set(self.kinds) & set(OPTIMIZER):
            preload()  # as the first optimizer of a process does: half a second, not the model's
        return registrations(self._register) if set(self.kinds) & set(REGISTRATION) else nullcontext()

    def _register(self, kind: HookKind, owner: nn.Module, name: str, item: Any) -> None:
        if item is not None and kind in self.kinds:
            self._built.append((self._now(), kind, owner, name, item))

    # The run.

    def attach(self, session: HookSession) -> None:
        self.session = session
        if self._built:  # a run that is made again follows the building as the first one did
            self._building = self._building or self._now()
            self._started = time.perf_counter_ns() - self._building
        leave_out(session, self.one_tensor)
        fqns = {id(module): fqn for fqn, module in session.model.named_modules()}
        asked = {id(module) for _, module in session.selected()}
        for at, kind, owner, name, item in self._built:
            if session.select and not {id(owner), id(item)} & asked:
                continue
            fqn = f"{fqns.get(id(owner), '(not in the model)')}.{name}".lstrip(".")  # a discarded module has no name
            tensors = [item] if isinstance(item, Tensor) and not is_lazy(item) else []
            what = type(item).__name__ if kind is HookKind.MODULE_REGISTRATION else None
            self._rows.append(_row(at, kind, fqn, type(owner).__name__, tensors) | {"name": what})
        self._memory = SavedMemory([*session.model.parameters(), *session.model.buffers()])
        for kind in self.kinds:
            if kind not in REGISTRATION:
                session.on(kind, self._see)
        if set(self.kinds) & set(FULL_BACKWARD):
            session.forward(self._note_unseen)

    def _note_unseen(self, event: HookEvent) -> None:
        if paths_of_outputs(event.output) is None and any(tree.leaves(event.output)):
            self._refused[Skipped(event.fqn, "full backward hooks do not see such an output", "full_backward")] = None

    def _see(self, event: HookEvent) -> None:
        module = type(event.module).__name__ if event.module is not None else None
        if event.kind in FORWARD:
            self._unseen.leaves(
                event.fqn, event.output if event.kind is HookKind.FORWARD else (*event.args, event.kwargs)
            )
        row = _row(self._now(), event.kind, event.fqn, module, list(event.tensors()))
        row |= {"pass": self.session.pass_number, "call": event.call, "path": event.path, "name": event.name or None}
        row |= further_values(event)
        if event.tensor is not None:
            row["bytes"] = event.tensor.numel() * event.tensor.element_size()
        if event.kind is HookKind.SAVED_TENSOR_PACK and event.tensor is not None:
            row["kept"] = 0 if recomputed(self.session.calls.running) else self._memory.keep(event.tensor)
        if event.watched:
            self._rows.append(row)

    def _now(self) -> int:
        now = time.perf_counter_ns()
        self._started = self._started or now
        return now - self._started

    # The report.

    def rows(self) -> list[Row]:
        """A row per firing; or in a summary a row per module at which hooks fired, in the model's order, and last the
        firings outside the model.
        """
        if not self.summary:
            return [Row({"index": index, **row}) for index, row in enumerate(self._rows)]
        types = {fqn: type(module).__name__ for fqn, module in self.session.model.named_modules()}
        most, _ = self._most_kept()
        counts = defaultdict[str, Counter[str]](Counter)
        for row in self._rows:
            where = row["fqn"] if row["fqn"] in types else row["fqn"].rpartition(".")[0] or row["fqn"]
            where = "" if where not in types and "(" not in where else where
            counts[where][row["kind"]] += 1
            counts[where]["kept"] += (row["kept"] or 0) if row["pass"] == most else 0
        return [
            Row({"fqn": name, "type": types.get(name)} | {key: counts[name][key] for key in (*self.kinds, "kept")})
            for name in dict.fromkeys([*types, *counts])
            if name in counts
        ]

    def _most_kept(self) -> tuple[int, int]:
        """The pass that saved the most memory for its backward, and how many bytes."""
        sums = Counter[int]()
        for row in self._rows:
            sums[row["pass"]] += row["kept"] or 0
        return max(sums.items(), key=itemgetter(1), default=(0, 0))

    def totals(self) -> Mapping[str, object]:
        _, kept = self._most_kept()
        return {"firings": len(self._rows)} | ({"kept_bytes": kept} if kept else {})

    def skipped(self) -> list[Skipped]:
        fired = {row["kind"] for row in self._rows}
        late = {} if self.session.nodes.exact else {HookKind.NODE_CREATION: "PyTorch has this hook since 2.14"}
        silent = [Skipped("", late.get(k, "never fired"), k) for k in self.kinds if k not in fired]
        paused = self.kinds if self.session.saved_tensors.paused else ()
        aside = [Skipped("", _ASIDE, kind) for kind in SAVED_TENSOR if kind in paused]
        left = left_out(self.one_tensor, "full_backward")
        return [*self._refused, *left, *silent, *aside, *self._unseen.skipped(), *unmeasured(self.session)]


# Full backward hooks where a model changes a tensor in place, those on several gradients under torch.autograd.grad.
_MAY_RAISE = (*FULL_BACKWARD, HookKind.MULTI_GRAD)
_ASIDE = "not seen inside torch.func, which takes no such hooks"


def _row(at: int, kind: HookKind, fqn: str, module: str | None, tensors: Sequence[Tensor | None]) -> dict[str, Any]:
    there = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
    return {
        "us": at / 1000,
        "kind": str(kind),
        "fqn": fqn,
        "type": module,
        "call": 0,
        "pass": 0,
        "path": "",
        "name": None,
        "shape": tree.lone([tree.shape_of(tensor) for tensor in there]),
        "dtype": tree.dtype_text(there[0]) if there else None,
        "bytes": None,
        "kept": None,
    }


_SHORT = {
    "saved_tensor_": "",
    "tensor_": "",
    "post_accumulate_grad": "accum_grad",
    "backward": "bwd",
    "forward": "fwd",
    "registration": "regd",
    "parameter": "param",
    "module": "mod",
    "creation": "made",
    "engine_callback": "pass_over",
    "optimizer": "optim",
    "state_dict": "state",
    "output": "out",
    "input": "in",
}
