"""Statistics of gradients: of parameters, or of what modules return or receive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from torch import Tensor

from hookcli import tree
from hookcli.errors import UsageError
from hookcli.hooks import HookEvent, HookKind, HookSession
from hookcli.hooks.backward import paths_of_inputs, paths_of_outputs
from hookcli.probes.base import StatsProbe, edited
from hookcli.probes.unregistered import unregistered
from hookcli.report import STATS_COLUMNS, Column, Row, Skipped

Of = Literal["parameters", "outputs", "inputs"]
Via = Literal["tensor", "module"]


class GradsProbe(StatsProbe):
    """A row per gradient, in the order in which they arrive.

    `of="parameters"`: what is in `.grad` once autograd has added to it, so a second pass without zeroing shows the sum.
    `of="outputs"` and `"inputs"`: the gradient of the loss with respect to each tensor that a module returned or
    received, by that module's use of it, per call and pass. `via="module"` takes these from PyTorch's own full backward
    hooks, which it refuses where a hooked tensor is changed in place, and which see fewer kinds of values.
    """

    name = "grads"
    needs_backward = True
    columns = (
        Column("fqn", "Name"),
        Column("kind", "Kind"),
        Column("type", "Type"),
        Column("call", "Call"),
        Column("pass", "Pass"),
        Column("index", "Order"),
        Column("path", "Path"),
        Column("shape", "Shape"),
        Column("dtype", "Dtype"),
        *STATS_COLUMNS,
    )

    def __init__(self, of: Of = "parameters", via: Via = "tensor") -> None:
        super().__init__()
        self.of = of
        self.via = via
        self._paths: dict[tuple[str, int], list[str] | None] = {}
        self.needs_input_grad = of == "inputs"
        self.watches_parameters = of == "parameters"
        self._expected: dict[tuple[str, int, str], str] = {}
        self._versions: dict[tuple[str, int, str], int] = {}
        self._arrived: set[tuple[str, int, str]] = set()
        self._awaited: list[HookEvent] = []

    def attach(self, session: HookSession) -> None:
        self.session = session
        if self.via == "module":
            self._check_edits(session)
        if self.of == "parameters":
            session.post_accumulate_grad(self._accumulated)
            session.after_backward(self._reduced)
        elif self.of == "outputs":
            session.forward(self._expect_outputs)
            session.on(_KINDS[self.of, self.via], self._arrive if self.via == "tensor" else self._arrive_together)
        else:
            session.forward_pre(self._expect_inputs)
            session.forward(self._notice_in_place)
            session.on(_KINDS[self.of, self.via], self._arrive if self.via == "tensor" else self._arrive_together)

    def _check_edits(self, session: HookSession) -> None:
        """Full backward hooks fire before the tensor hooks that edit: what they see is not what was changed."""
        what = f"grad_{self.of.removesuffix('s')}"
        for fqn, _ in session.selected():
            for edit in session.edits:
                if edit.what == what and edit.matches(fqn):
                    raise UsageError(
                        f"--edit {edit.text!r}: full backward hooks see {fqn or 'the model'} before it is changed; "
                        "without --via module the rows show the edited gradients"
                    )

    def _accumulated(self, event: HookEvent) -> None:
        assert self.session is not None
        if self.session.averaged > 1:  # over processes, which is not done yet
            self._awaited.append(replace(event, grad=None))
        else:
            self._take(event, event.fqn.rpartition(".")[0])

    def _reduced(self) -> None:
        """The gradients of all processes are in."""
        assert self.session is not None
        for event in self._awaited:
            self._take(replace(event, grad=self.session.parameters[event.fqn].grad), event.fqn.rpartition(".")[0])
        self._awaited.clear()

    def rows(self) -> list[Row]:
        """What was averaged over processes is shown as their sum: the gradient of the whole batch."""
        processes = self.session.averaged if self.session and self.of == "parameters" else 1
        rows = super().rows()
        return [replace(row, stats=row.stats.scaled(processes)) for row in rows if row.stats] if processes > 1 else rows

    def _arrive(self, event: HookEvent) -> None:
        self._arrived.add((event.fqn, event.call, event.path))
        self._take(event, event.fqn)

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

    def _take(self, event: HookEvent, module: str) -> None:
        assert self.session is not None and event.grad is not None
        key = (event.fqn, event.call, event.path, self.session.passes)
        values = {
            "fqn": event.fqn,
            "kind": self.of.removesuffix("s"),
            "type": tree.type_text(self.session.model.get_submodule(module)),
            "call": event.call,
            "pass": self.session.passes,
            "index": event.index,
            "path": event.path,
        } | edited(event)
        if tree.is_sharded(event.grad):
            values["sharded"] = True
        self.take(values, event.grad, *key)

    def _expect_outputs(self, event: HookEvent) -> None:
        paths = self._paths[event.fqn, event.call] = paths_of_outputs(event.output)
        received = {id(tree.base(x)) for _, x in tree.arguments(event.args, event.kwargs)}
        for path, tensor in _differentiable(self.unseen.leaves(event.fqn, event.output)):
            why = self._why_not(tensor, path in (paths or ()), type(event.output).__name__)
            if why == _NONE_REACHED and id(tree.base(tensor)) in received:
                why += ", or what it hands on is changed in place, which drops the hook"
            self._expected[event.fqn, event.call, path] = f"output: {why}"

    def _expect_inputs(self, event: HookEvent) -> None:
        paths = self._paths[event.fqn, event.call] = paths_of_inputs(event.args, dict(event.kwargs))
        found = list(_differentiable(self.unseen.arguments(event.fqn, event.args, event.kwargs)))
        if self.via == "module" and not found:
            self.skip(
                event.fqn, "received no tensor that a full backward hook can see; --of outputs sees what it returns"
            )
        lent: dict[str, Tensor] = {}
        tree.replace_arguments(event.args, dict(event.kwargs), lent.setdefault, tree.Undo())
        for path, tensor in found:
            why = self._why_not(tensor, path in paths, "argument by keyword or in a container")
            if self.via == "tensor" and tensor.requires_grad and path not in lent:
                why = "it is in an object that can't be lent another tensor for the time of the call"
            self._expected[event.fqn, event.call, path] = f"input: {why}"
            self._versions[event.fqn, event.call, path] = 0 if tensor.is_inference() else tensor._version

    def _why_not(self, tensor: Tensor, seen: bool, what: str) -> str:
        if not tensor.requires_grad:
            return _NEEDS_NONE
        if self.via == "module" and not seen:
            return f"full backward hooks see no {what}; without --via module it is seen"
        return _NONE_REACHED

    def _notice_in_place(self, event: HookEvent) -> None:
        for path, tensor in tree.arguments(event.args, event.kwargs):
            key = (event.fqn, event.call, path)
            if tensor.requires_grad and tensor._version != self._versions.get(key):
                self._expected[key] = "input: the module overwrites it, which drops its hook"

    def skipped(self) -> list[Skipped]:
        if self.of == "parameters":
            return self._parameters_without()
        for key, reason in self._expected.items():
            if key not in self._arrived:
                self.skip(key[0], reason, key[2])
        return super().skipped()

    def _parameters_without(self) -> list[Skipped]:
        assert self.session is not None
        measured = {values["fqn"] for values, _ in self._taken.values()}
        return [
            Skipped(fqn, self._why_without(fqn, parameter.requires_grad))
            for fqn, parameter in self.session.parameters.items()
            if fqn not in measured
        ] + [item.skipped() for item in unregistered(self.session)]

    def _why_without(self, fqn: str, requires_grad: bool) -> str:
        assert self.session is not None
        if not requires_grad:
            return "frozen (requires_grad=False)"
        if fqn not in self.session.hooked_parameters:
            return "lazy: it takes no hook before its module has run once"
        return _NONE_REACHED


_NONE_REACHED = "no gradient reached it"
_NEEDS_NONE = "does not require grad"
_KINDS = {
    ("outputs", "tensor"): HookKind.TENSOR_GRAD_OUTPUT,
    ("inputs", "tensor"): HookKind.TENSOR_GRAD_INPUT,
    ("outputs", "module"): HookKind.FULL_BACKWARD_PRE,
    ("inputs", "module"): HookKind.FULL_BACKWARD,
}


def _differentiable(leaves: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Those that could have a gradient at all: labels and masks can't."""
    return ((path, x) for path, x in leaves if x.is_floating_point() or x.is_complex())
