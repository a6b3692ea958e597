"""Statistics of gradients: of parameters, or of what modules return or receive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from torch import Tensor

from hookcli import tree
from hookcli.hooks import HookEvent, HookSession
from hookcli.probes.base import StatsProbe
from hookcli.report import STATS_COLUMNS, Column, Skipped

Of = Literal["parameters", "outputs", "inputs"]


class GradsProbe(StatsProbe):
    """A row per gradient, in the order in which they arrive.

    `of="parameters"`: what is in `.grad` once autograd has added to it, so a second pass without zeroing shows the sum.
    `of="outputs"` and `"inputs"`: the gradient of the loss with respect to each tensor that a module returned or
    received, by that module's use of it, per call and pass.
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

    def __init__(self, of: Of = "parameters") -> None:
        super().__init__()
        self.of = of
        self.needs_input_grad = of == "inputs"
        self.watches_parameters = of == "parameters"
        self._expected: dict[tuple[str, int, str], str] = {}
        self._versions: dict[tuple[str, int, str], int] = {}
        self._arrived: set[tuple[str, int, str]] = set()

    def attach(self, session: HookSession) -> None:
        self.session = session
        if self.of == "parameters":
            session.post_accumulate_grad(self._accumulated)
        elif self.of == "outputs":
            session.forward(self._expect_outputs)
            session.output_grad(self._arrive)
        else:
            session.forward_pre(self._expect_inputs)
            session.forward(self._notice_in_place)
            session.input_grad(self._arrive)

    def _accumulated(self, event: HookEvent) -> None:
        self._take(event, event.fqn.rpartition(".")[0])

    def _arrive(self, event: HookEvent) -> None:
        self._arrived.add((event.fqn, event.call, event.path))
        self._take(event, event.fqn)

    def _take(self, event: HookEvent, module: str) -> None:
        assert self.session is not None and event.grad is not None
        key = (event.fqn, event.call, event.path, self.session.passes)
        values = {
            "fqn": event.fqn,
            "kind": self.of.removesuffix("s"),
            "type": type(self.session.model.get_submodule(module)).__name__,
            "call": event.call,
            "pass": self.session.passes,
            "index": event.index,
            "path": event.path,
        }
        self.take(values, event.grad, *key)

    def _expect_outputs(self, event: HookEvent) -> None:
        for path, tensor in _differentiable(tree.leaves(event.output)):
            why = "no gradient reached it" if tensor.requires_grad else "does not require grad"
            self._expected[event.fqn, event.call, path] = f"output: {why}"

    def _expect_inputs(self, event: HookEvent) -> None:
        for path, tensor in _differentiable(tree.arguments(event.args, event.kwargs)):
            why = "no gradient reached it" if tensor.requires_grad else "does not require grad"
            self._expected[event.fqn, event.call, path] = f"input: {why}"
            self._versions[event.fqn, event.call, path] = 0 if tensor.is_inference() else tensor._version

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
        ]

    def _why_without(self, fqn: str, requires_grad: bool) -> str:
        assert self.session is not None
        if not requires_grad:
            return "frozen (requires_grad=False)"
        if fqn not in self.session.hooked_parameters:
            return "lazy: it takes no hook before its module has run once"
        return "no gradient reached it"


def _differentiable(leaves: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Those that could have a gradient at all: labels and masks can't."""
    return ((path, x) for path, x in leaves if x.is_floating_point() or x.is_complex())
