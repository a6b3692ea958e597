"""Statistics of gradients: of parameters, or of the tensors that modules return or receive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from torch import Tensor

from hookcli.errors import OneTensorError, UsageError
from hookcli.hooks.events import HookEvent
from hookcli.hooks.full_backward import leads_to_another, paths_of_inputs, paths_of_outputs
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import version_of
from hookcli.probes.base import Probe, StatsProbe, TensorSink, further_values
from hookcli.probes.fallbacks import leave_out, left_out
from hookcli.probes.shared.unregistered import unregistered
from hookcli.table import Reason, Row, Skipped, formatting
from hookcli.table.columns.layouts import GRADS
from hookcli.table.names import operator_owner
from hookcli.tensors import tree
from hookcli.tensors.torch_private import is_view

Of = Literal["parameters", "outputs", "inputs"]
Via = Literal["tensor", "module"]


class GradsProbe(StatsProbe):
    """A row per gradient, in the order in which they arrive.

    `of="parameters"`: the value of `.grad` once autograd has added to it, so a second pass without zeroing shows the
    sum. `of="outputs"`: the gradient of the loss with respect to each tensor that a module returned, over all uses of
    that tensor, including the module's own. `of="inputs"`: with respect to each tensor that a module received, by that
    module's use of it. If the module hands the tensor on, the row is the tensor's whole gradient, over all of its uses,
    and carries `handed_on`. There is a row per call and pass. `via="module"` takes gradients from PyTorch's full
    backward hooks: they miss what a module's other outputs make of an output, are refused if a hooked tensor is changed
    in place, and see fewer kinds of values. If operators are watched, each tensor that one returned has a row of kind
    `output`, with any `of`.
    """

    name = "grads"
    needs_backward = True
    columns = GRADS
    operators = True

    def __init__(
        self, of: Of = "parameters", via: Via = "tensor", *, hist: bool = False, sink: TensorSink | None = None
    ) -> None:
        super().__init__(hist=hist, sink=sink)
        self.tensors = "grad" if of == "parameters" else f"grad_{of.removesuffix('s')}"
        self.of, self.via, self._hist = of, via, hist
        self._paths: dict[tuple[str, int], list[str] | None] = {}
        self.needs_input_grad = of == "inputs"
        self.inside_compiled = via == "tensor"
        self.watches_parameters = of == "parameters"
        self._expected: dict[tuple[str, int, str], str] = {}
        self._versions: dict[tuple[str, int, str], int] = {}
        self._arrived: set[tuple[str, int, str]] = set()
        self._layouts: dict[tuple[str, int, str], dict[str, object]] = {}  # over ranks, of outputs that are parts
        self._awaited: list[HookEvent] = []
        self._noted = defaultdict[str, dict[str, None]](dict)  # the modules of each remark

    def attach(self, session: HookSession) -> None:
        self.session = session
        if self.via == "module":
            leave_out(session, self.one_tensor)
            what = f"grad_{self.of.removesuffix('s')}"
            for fqn, _ in session.selected():
                for edit in session.edits:
                    if edit.what == what and edit.matches(fqn):
                        raise UsageError(
                            f"--edit {edit.text!r}: full backward hooks see {fqn or 'the model'} before it is changed; "
                            "without --via module the rows show the edited gradients"
                        )
        if self.of == "parameters":
            session.post_accumulate_grad(self._accumulated)
            session.after_backward(self._reduced)
        elif self.of == "outputs":
            session.forward(self._expect_outputs)
        else:
            session.forward_pre(self._expect_inputs)
            session.forward(self._notice_in_place)
        if self.of != "parameters":
            session.on(_KINDS[self.of, self.via], self._arrive if self.via == "tensor" else self._arrive_together)
        if self.of != "outputs":
            session.on_operators(HookKind.FORWARD, self._expect_outputs)
        if (self.of, self.via) != ("outputs", "tensor"):
            session.on_operators(HookKind.TENSOR_GRAD_OUTPUT, self._arrive)

    def instead(self, error: Exception) -> Probe | None:
        """Return a probe without full backward hooks on the modules that can't have them."""
        if not isinstance(error, OneTensorError) or self.via == "tensor":
            return None
        other = GradsProbe(self.of, self.via, hist=self._hist, sink=self.sink)
        other.one_tensor = error
        return other

    def _accumulated(self, event: HookEvent) -> None:
        if event.grad is None:  # a function of the program's own gave None as the parameter's gradient
            return
        if self.session.processes > 1:  # over processes, which is not done yet
            self._awaited.append(replace(event, grad=None))
        else:
            self._take(event)

    def _reduced(self) -> None:
        """Take in the gradients once they are summed up over all processes."""
        for event in self._awaited:
            self._take(replace(event, grad=self.session.parameters[event.fqn].grad))
        self._awaited.clear()

    def rows(self) -> list[Row]:
        """The rows; gradients that were averaged over processes are shown as their sum, over the whole batch."""
        processes = self.session.processes if self.session and self.of == "parameters" else 1
        rows = super().rows()
        return [_scaled(row, processes) for row in rows] if processes > 1 else rows

    def _arrive(self, event: HookEvent) -> None:
        if not event.inner:
            self._arrived.add((event.fqn, event.call, event.path))
            self._take(event)

    def _arrive_together(self, event: HookEvent) -> None:
        """A full backward hook gets the gradients of all tensors of a call at once."""
        grads = event.grad_outputs if self.of == "outputs" else event.grad_inputs
        paths = self._paths.get((event.fqn, event.call)) or []
        # PyTorch hands zeros on for tensors that need no gradient. Where none did need one but the hook fires, the
        # forward was a checkpoint's, without gradients, and what fires is of the recomputed one.
        needed = [not self._expected.get((event.fqn, event.call, path), "").endswith(_NEEDS_NONE) for path in paths]
        for path, grad, did in zip(paths, grads, needed, strict=False):
            if grad is not None and (did or not any(needed)):
                self._arrive(replace(event, path=path, grad=grad))

    def _take(self, event: HookEvent) -> None:
        assert event.grad is not None
        key = (event.fqn, event.call, event.path, self.session.pass_number)
        values = {
            "fqn": event.fqn,
            "kind": "output" if event.operator else self.of.removesuffix("s"),
            "type": None if event.module is None else tree.type_text(event.module),
            "call": event.call,
            "pass": self.session.pass_number,
            "index": event.index,
            "path": event.path,
        } | further_values(event)
        self.take(values, event.grad, *key, layout=self._layouts.get(key[:3]))

    def _expect_outputs(self, event: HookEvent) -> None:
        paths = self._paths[event.fqn, event.call] = paths_of_outputs(event.output)
        via = "tensor" if event.operator else self.via
        if via == "module" and leads_to_another([y for _, y in tree.leaves(event.output)]):
            self._noted[_LEAD][event.fqn or "(model)"] = None
        for path, tensor in _differentiable(self.unseen.leaves(event.fqn, event.output)):
            why = self._why_not(tensor, via, path in (paths or ()), type(event.output).__name__)
            self._expected[event.fqn, event.call, path] = f"output: {why}"
            layout = tree.layout_of(tensor)
            if "sharded" in layout and "partial" not in layout:
                self._layouts[event.fqn, event.call, path] = layout

    def _expect_inputs(self, event: HookEvent) -> None:
        paths = self._paths[event.fqn, event.call] = paths_of_inputs(event.args, dict(event.kwargs))
        arguments = list(_differentiable(self.unseen.arguments(event.fqn, event.args, event.kwargs)))
        if self.via == "module" and not arguments:
            self.skip(event.fqn, "received no tensor that full backward hooks can see; --of outputs shows its outputs")
        for path, tensor in arguments:
            why = self._why_not(tensor, self.via, path in paths, "argument by keyword or in a container")
            self._expected[event.fqn, event.call, path] = f"input: {why}"
            self._versions[event.fqn, event.call, path] = version_of(tensor)
        ids = [id(x) for _, x in arguments if x.requires_grad and self.via == "tensor"]
        if len(set(ids)) < len(ids):
            self._noted[_SEVERAL][event.fqn or "(model)"] = None

    def _why_not(self, tensor: Tensor, via: Via, seen: bool, what: str) -> str:
        if not tensor.requires_grad:
            return _NEEDS_NONE
        if via == "module" and not seen:
            return f"full backward hooks see no {what}; without --via module it is seen"
        return _NONE_REACHED + (_VIEW if via == "tensor" and is_view(tensor) else "")

    def _notice_in_place(self, event: HookEvent) -> None:
        viewed = {id(tree.base(y)) for _, y in tree.leaves(event.output) if is_view(y)}
        for path, tensor in tree.arguments(event.args, event.kwargs):
            key = (event.fqn, event.call, path)
            if key not in self._versions:
                continue  # the module put it into a list that it received
            if tensor.requires_grad and version_of(tensor) != self._versions[key]:
                self._expected[key] = "input: it is a view that the module changes in place, which drops its hooks"
            elif tensor.requires_grad and self.via == "tensor" and id(tree.base(tensor)) in viewed:
                self._expected[key] = f"input: {_NONE_REACHED}, or a view of it was returned and changed in place later"

    def skipped(self) -> list[Skipped]:
        left = left_out(self.one_tensor, otherwise="; without --via module it is seen")
        without = {item.fqn for item in left}
        for key, reason in self._expected.items():
            if key not in self._arrived and key[0] not in without:
                self.skip(key[0], reason, key[2])
        if self.of != "parameters":
            return [*left, *super().skipped()]
        # The names of the rows, without reading their statistics back once more.
        measured = {row.fqn for row in self._batches.rows()} or {values["fqn"] for values, _ in self.pending()}
        skipped = []
        for fqn, parameter in self.session.parameters.items():
            if fqn not in measured:
                skipped.append(self._without(fqn, parameter.requires_grad))
        skipped += [item.skipped() for item in unregistered(self.session)]
        return skipped + [item for item in self._skipped if operator_owner(item.fqn) is not None]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        """Remarks on inputs that are handed on or come several times, and on outputs that others are made from."""
        handed_on = dict.fromkeys(row.fqn or "(model)" for row in rows if row.get("handed_on"))
        noted = {_HANDED_ON + _INSIDE * bool(self.session and self.session.inside_compiled): handed_on} | self._noted
        return [f"{formatting.listed(list(names), 1)}: {note}" for note, names in noted.items() if names]

    def _without(self, fqn: str, requires_grad: bool) -> Skipped:
        if not requires_grad:
            return Skipped(fqn, "frozen (requires_grad=False)")
        if fqn not in self.session.hooked_parameters:
            return Skipped(fqn, "lazy: it takes no hook before its module has run once")
        return Skipped(fqn, _NONE_REACHED, kind=Reason.NO_GRADIENT)


def _scaled(row: Row, processes: int) -> Row:
    return replace(row, stats=row.stats.scaled(processes)) if row.stats and row["kind"] == "parameter" else row


_HANDED_ON = "hands on a tensor that it received; the row is the tensor's whole gradient, over all of its uses"
_INSIDE = " (inside a compiled program: over later uses alone)"
_SEVERAL = "receives a tensor several times; each of the tensor's rows is its gradient by all of these places together"
_LEAD = "one of its outputs is made from another, a part of the gradient that --via module leaves out"
_VIEW = ", or it is a view of what is changed in place, which drops its hooks"
_NONE_REACHED = "no gradient reached it"
_NEEDS_NONE = "does not require grad"
_KINDS = {
    ("outputs", "tensor"): HookKind.TENSOR_GRAD_OUTPUT,
    ("inputs", "tensor"): HookKind.TENSOR_GRAD_INPUT,
    ("outputs", "module"): HookKind.FULL_BACKWARD_PRE,
    ("inputs", "module"): HookKind.FULL_BACKWARD,
}


def _differentiable(leaves: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The tensors that can have a gradient at all; labels and masks can't."""
    return ((path, x) for path, x in leaves if x.is_floating_point() or x.is_complex())
