"""The modules of a dump beside those of a model or another dump."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from hookcli.diff.align import Alignment, NamedPart, align
from hookcli.engine.lockstep.lockstep import A, B
from hookcli.engine.lockstep.module_tensors import GRAD, OUTPUT
from hookcli.table.dump import Dump
from hookcli.tensors import tree


def parts_of(dump: Dump, others: Sequence[NamedPart] = ()) -> list[NamedPart]:
    """The modules and operators of a dump; if it lists none, its tensors' modules, with types from `others`."""
    if dump.modules:  # and the operators whose outputs, or their gradients, it has, in the order in which they ran
        rows = sorted(dump.tensors, key=lambda row: (row["kind"] != OUTPUT, row["batch"], row["pass"], row["index"]))
        parts = dict.fromkeys(NamedPart(row.fqn, row["type"]) for row in rows if row["kind"] != GRAD)
        return [*(NamedPart(*module) for module in dump.modules), *(part for part in parts if part.is_operator)]
    types_of_others = {part.fqn: part.type for part in others}
    types: dict[str, str] = {}
    for row in sorted(dump.tensors, key=lambda row: row["index"]):
        fqn = row.fqn.rpartition(".")[0] if row["kind"] == GRAD else row.fqn
        types[fqn] = types.get(fqn) or row["type"] or types_of_others.get(fqn, "")
    return [NamedPart(fqn, kind) for fqn, kind in types.items()]


def alignment_with(dump: Dump, modules: Sequence[NamedPart], side: int, other: Dump | None) -> Alignment:
    """Align a dump's modules, which are side `side`, with others. A dump that does not list its modules lacks none."""
    mine = parts_of(dump, modules)
    both = align(mine, modules) if side == A else align(modules, mine)
    unknown = [not dump.modules, other is not None and not other.modules][:: 1 if side == A else -1]
    return replace(both, added=() if unknown[A] else both.added, removed=() if unknown[B] else both.removed)


class Extent:
    """The modules and parameters whose tensors a dump has, as far as they exist; of a model that runs, all."""

    def __init__(self, dump: Dump | None) -> None:
        self.lists_modules = dump is None or bool(dump.modules)
        self._ended = dump is None or (self.lists_modules and bool(dump.meta.get("complete", True)))
        self._names: set[str] | None = None
        if dump is not None and (dump.narrowed or not dump.modules):
            self._names = {row.fqn for row in dump.tensors} | {item.fqn for item in dump.skipped}

    def covers(self, fqn: str) -> bool:
        """True if its tensors were asked for."""
        return self._names is None or fqn in self._names

    def has_all_of(self, fqn: str) -> bool:
        """True if a tensor of it that is not in the dump did not exist."""
        return self._ended and self.covers(fqn)


def module_parts(model: nn.Module) -> list[NamedPart]:
    """The modules of a model."""
    return [NamedPart(fqn, tree.type_text(module)) for fqn, module in model.named_modules()]


def in_common(dump: Dump, others: Sequence[NamedPart]) -> tuple[int, int]:
    """Count a dump's modules that others have with the same type and last name, and all; not the model itself."""
    mine = parts_of(dump, others)
    pairs = [(a, b) for a, b in align(mine, others).pairs if a.type == b.type and not a.is_operator]
    names = [[part.fqn.rpartition(".")[2] for part in pair] for pair in pairs]
    return sum(a == b != "" for a, b in names), sum(bool(part.fqn) and not part.is_operator for part in mine)


def name_there(names: Mapping[str, str], kind: str, fqn: str) -> str | None:
    """The other side's name of a module, or of a parameter (of whose gradient a tensor is); None if it has none."""
    if kind != GRAD:
        return names.get(fqn)
    owner, _, name = fqn.rpartition(".")
    return f"{names[owner]}.{name}".lstrip(".") if owner in names else None
