"""Modules, calls and tensors that a run did not measure, each with the reason."""

from __future__ import annotations

from collections import deque
from dataclasses import is_dataclass
from typing import Any

from torch import Tensor, nn

from hookcli.hooks.session import HookSession
from hookcli.probes.shared.unregistered import unregistered
from hookcli.table import Reason, Skipped
from hookcli.tensors import tree
from hookcli.tensors.containers import Walked, hidden_tensors
from hookcli.tensors.tree import Unseen

UNINITIALISED = "uninitialised memory: not all of it was written yet, so its values mean nothing"


def unmeasured(session: HookSession) -> list[Skipped]:
    """Modules that were not measured, wholly or in one of their calls, each with its reason."""
    skipped = never_called(session)
    for fqn, ended in session.ended_by_exceptions().items():  # if the model caught it, nothing else reports it
        number, error = next(iter(ended.items()))
        call = f"call {number}" if number else "its call"
        reason = f"{call} raised {error} and returned nothing" if error else f"{call} did not return"
        skipped.append(Skipped(fqn, reason + (f", nor did {len(ended) - 1} more" if len(ended) > 1 else "")))
    return [*skipped, *(item.skipped() for item in unregistered(session))]


def never_called(session: HookSession) -> list[Skipped]:
    """Every module that could run and did not, or takes no hooks, with the reason as far as it is known."""
    skipped = [Skipped(fqn, reason) for fqn, reason in session.not_hooked().items()]
    never = [fqn for fqn, one in session.never_called().items() if type(one).forward is not nn.Module.forward]
    if not never:
        return skipped
    model = session.model
    plain = f"never called in {'train' if model.training else 'eval'} mode"
    fused = "never called: inside TransformerEncoderLayer's fused path (--no-fastpath shows it)"
    reasons: dict[str, str] = {}
    modules: dict[str, nn.Module] = {}
    of_parts: dict[str, str] = {}
    for fqn, module in model.named_modules(remove_duplicate=False):  # each after the one around it
        owner = fqn.rpartition(".")[0]
        is_fused = isinstance(module, nn.TransformerEncoderLayer) and not model.training
        reasons[fqn] = of_parts.get(owner, plain)
        of_parts[fqn] = fused if is_fused else reasons[fqn]
        if fqn and isinstance(modules[owner], nn.MultiheadAttention):
            reasons[fqn] = "never called: MultiheadAttention uses its weights without calling it"
        modules[fqn] = module
    return skipped + [Skipped(fqn, reasons[fqn], kind=Reason.NEVER_CALLED) for fqn in never]


class UnreachableTensors:
    """Walks values as `tree` does, and notes, once for each module, objects with tensors that it can't reach."""

    def __init__(self) -> None:
        self._noted: dict[Skipped, None] = {}
        self.places: set[str] = set()

    def leaves(self, fqn: str, value: object) -> list[tuple[str, Tensor]]:
        """The tensors in what the module of this name returned."""
        unseen: Unseen = []
        tensors = list(tree.leaves(value, "", unseen))
        self._note(fqn, unseen)
        return tensors

    def arguments(self, fqn: str, args: tuple[object, ...], kwargs: Any) -> list[tuple[str, Tensor]]:
        """The tensors that the module received."""
        unseen: Unseen = []
        tensors = list(tree.arguments(args, kwargs, unseen))
        self._note(fqn, unseen)
        return tensors

    def _note(self, fqn: str, unseen: Unseen) -> None:
        for path, value in unseen:
            if reason := _why(value):
                self._noted[Skipped(fqn, reason, path if len(path) < 80 else f"{path[:76]}...")] = None
                self.places.add(fqn)

    def skipped(self) -> list[Skipped]:
        return list(self._noted)


def _why(value: object) -> str:
    """The reason why the tensors of this value can't be seen; "" if a short look finds none."""
    if isinstance(value, Walked):
        return f"holds a value that is not looked into inside a compiled program ({value.kind})"
    if isinstance(value, (list, tuple, deque, dict)) or is_dataclass(value):  # a walk met it, and did not enter
        return f"lies deeper than {tree.DEEPEST} levels: tensors there are not looked for"
    holds = next(hidden_tensors(value), None) is not None
    return f"holds tensors that can't be seen ({type(value).__name__})" if holds else ""
