"""Compares the tensors of a run, or of a dump, with a dump's, whose modules stand beside the others'."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.diff import verdict
from hookcli.diff.align import Alignment, NamedPart, align
from hookcli.diff.tolerance import Tolerance
from hookcli.engine.lockstep.lockstep import A, B
from hookcli.engine.lockstep.module_tensors import GRAD, OUTPUT, ModuleTensors, only
from hookcli.engine.lockstep.side import UNSEEN
from hookcli.engine.lockstep.tensor_pairs import TensorPairs
from hookcli.hooks.session import HookSession
from hookcli.table import Report, Row, Skipped
from hookcli.table.columns import IDENTITY, names
from hookcli.table.columns.layouts import DUMPED, DUMPED_IF_FILLED, with_operators
from hookcli.table.dump import Dump
from hookcli.table.meta import Meta, without
from hookcli.tensors.files.dump_reader import DumpReader


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


def in_common(dump: Dump, others: Sequence[NamedPart]) -> tuple[int, int]:
    """Count a dump's modules that others have with the same type and last name, and all; not the model itself."""
    parts = parts_of(dump, others)
    pairs = [(a, b) for a, b in align(parts, others).pairs if a.type == b.type and not a.is_operator]
    names = [[part.fqn.rpartition(".")[2] for part in pair] for pair in pairs]
    return sum(a == b != "" for a, b in names), sum(bool(part.fqn) and not part.is_operator for part in parts)


def name_there(names: Mapping[str, str], kind: str, fqn: str) -> str | None:
    """The other side's name of a module, or of a parameter (of whose gradient a tensor is); None if it has none."""
    if kind != GRAD:
        return names.get(fqn)
    owner, _, name = fqn.rpartition(".")
    return f"{names[owner]}.{name}".lstrip(".") if owner in names else None


Key = tuple[object, ...]
Wanted = Callable[[str, str, str], bool]
"""The test of a dump's tensor: by its kind, name, and type of module."""
_HAS = {"output": "returned", "input": "received"}


class DumpComparison:
    """A comparison of a dump, which is side `side`, with the tensors that it takes: a probe's sink.

    `wanted` narrows, by names in the dump. `modules`: the modules of the other side, a model or the dump `other`, and
    its operators, if the dump has some; `unseen` are parts of that model whose hooks do not fire. Each tensor of the
    dump is read when the other side's tensor arrives, and let go at once.
    """

    def __init__(
        self,
        reader: DumpReader,
        side: int,
        modules: Sequence[NamedPart],
        wanted: Wanted,
        other: Dump | None = None,
        unseen: Collection[str] = (),
    ) -> None:
        self.reader = reader
        self.side, self.other = side, 1 - side
        self.alignment = self.aligned(modules, other)
        self._wanted, self._unseen = wanted, unseen
        self._types = {place.fqn: place.type for place in modules}
        self._rows = {key_of(row.values, row.fqn): row for row in reader.dump.tensors}
        self._seen: set[Key] = set()
        self._mine, self._others = Extent(reader.dump), Extent(other)
        # Names of the dump's modules by names of the other side, and the other way round.
        names = self.alignment.in_a, self.alignment.in_b
        self._names, self._theirs = names[side], names[self.other]
        self.pairs = TensorPairs(self.alignment, followed=self.other)
        self._followed, self.meta = False, Meta()
        self._skipped: dict[Skipped, None] = {}

    def aligned(self, modules: Sequence[NamedPart], other: Dump | None) -> Alignment:
        """Align the dump's modules with the other side's. A dump that does not list its modules lacks none."""
        dump = self.reader.dump
        parts = parts_of(dump, modules)
        both = align(parts, modules) if self.side == A else align(modules, parts)
        unknown = [not dump.modules, other is not None and not other.modules][:: 1 if self.side == A else -1]
        return replace(both, added=() if unknown[A] else both.added, removed=() if unknown[B] else both.removed)

    def select(self, fqn: str, module: nn.Module) -> bool:
        """True for a module (or, with its module, a parameter) whose tensors the dump has, or must have."""
        kinds = (OUTPUT, GRAD) if GRAD in self.reader.dump.kinds else (OUTPUT,)
        if fqn in self._unseen:
            return False
        names = [name_there(self._names, kind, fqn) for kind in kinds]
        return not any(names) or any(name is not None and self._mine.covers(name) for name in names)

    def begin(
        self, session: HookSession, args: tuple[object, ...], kwargs: Mapping[str, object], target: object
    ) -> None:
        """Follow how errors grow through the modules of a model that is about to run."""
        if OUTPUT in self.reader.dump.kinds and not self._followed:
            session.forward_pre(partial(self.pairs.known.receive, self.other))
            self._followed = True  # several probes may share this sink

    def take_all(self, other: DumpReader) -> None:
        for row in other.dump.tensors:
            if row["file"]:
                self.take(row.values, partial(other.load, row))
            elif (name := name_there(self._names, row["kind"], row.fqn)) is not None:
                self._seen.add(key_of(row.values, name))
                self._skip(row)

    def finish(self, model: str, meta: Meta, skipped: Sequence[Skipped]) -> None:
        self.meta = meta
        self._skipped |= dict.fromkeys(skipped)

    def report(self, tolerance: Tolerance, model: str, meta: Meta) -> Report:
        """The report of what was compared. `meta["complete"]`: the other side's run came to its end."""
        complete = bool(meta.get("complete", True))
        if complete:
            self._add_missing()
        rows = self.pairs.rows(tolerance, complete)
        metas = [without(run, "seconds", "hookcli_seconds") for run in (self.reader.dump.meta, self.meta)]
        used = {name for name in names(DUMPED_IF_FILLED) if any(row.get(name) for row in rows)}
        if all(row.get("kind") == OUTPUT for row in rows):
            used.discard("kind")
        columns = [c for c in with_operators(DUMPED) if c.name in used or c not in DUMPED_IF_FILLED]
        compared = Report("diff", model, columns, rows, meta, skipped=[*self.pairs.skipped(), *self._skipped])
        identical = complete and bool(self.pairs.same_bits) and not any(row.get("beyond") for row in rows)
        metas = metas if self.side == A else metas[::-1]
        return verdict.judged(compared, self.alignment, tolerance, metas, identical=identical)

    def take(self, values: Mapping[str, Any], tensor: Tensor | Callable[[], Tensor]) -> None:
        """Compare a tensor of the other side, which may have to be loaded, with the dump's."""
        kind, fqn = values["kind"], values["fqn"]
        name = name_there(self._names, kind, fqn)
        live = _seen(values, fqn, [])
        live.type = live.type or self._types.get(fqn, "")
        if name is None:
            self.pairs.key(self.other, live)  # which notes a module that the dump lacks
            return
        if not self._wanted(kind, name, values["type"] or ""):
            return
        row = self._rows.get(key_of(values, name))
        if row is None:
            if self._mine.has_all_of(name):
                self.pairs.note_unmatched(self.other, live, only(self.other, _HAS.get(kind, "has a gradient")))
            else:
                self._skipped[Skipped(fqn, "not in the dump", values["path"])] = None
            return
        self._seen.add(key_of(values, name))
        if not row["file"]:
            self._skip(row)
            return
        path = values["path"]
        live.tensors.append((path, tensor if isinstance(tensor, Tensor) else tensor()))
        dumped = _seen({**row.values, "type": row["type"] or live.type}, name, [(path, self.reader.load(row))])
        pair = (dumped, live) if self.side == A else (live, dumped)
        self.pairs.compare(None, *pair)

    def _add_missing(self) -> None:
        for row in [row for key, row in self._rows.items() if key not in self._seen]:
            there = name_there(self._theirs, row["kind"], row.fqn)
            seen = _seen(row.values, row.fqn, [(row["path"], torch.empty(0))])
            if not self._wanted(row["kind"], row.fqn, row["type"]):
                continue
            if not row["file"]:
                self._skip(row)
            elif there is None and self._others.lists_modules:
                self.pairs.note_unmatched(self.side, seen, {"change": "removed" if self.side == A else "added"})
            elif there in self._unseen:
                self._skipped[Skipped(row.fqn, UNSEEN, row["path"])] = None
            elif there is not None and self._others.has_all_of(there):
                values = only(self.side, _HAS.get(row["kind"], "has a gradient"))
                values["differs"] += "".join(f": {item.reason}" for item in self._skipped if item.fqn == there)
                self.pairs.note_unmatched(self.side, seen, values)
            else:
                self._skipped[Skipped(row.fqn, "not in the other dump", row["path"])] = None

    def _skip(self, row: Row) -> None:
        self._skipped[Skipped(row.fqn, row["reason"], row["path"])] = None


def compare_dumps(a: DumpReader, b: DumpReader, wanted: Wanted, tolerance: Tolerance, meta: Meta) -> Report:
    """Compare two dumps tensor by tensor: the report that a comparison of two models has, without their weights."""
    comparison = DumpComparison(a, A, parts_of(b.dump, parts_of(a.dump)), wanted, b.dump)
    comparison.take_all(b)
    comparison.finish(b.dump.model, b.dump.meta, [])
    return comparison.report(tolerance, f"{a.folder} → {b.folder}", meta)


def key_of(values: Mapping[str, object], fqn: str) -> Key:
    """The identity of a tensor, under a module's name of the dump."""
    return tuple(fqn if name == "fqn" else values.get(name) or 0 for name in IDENTITY)


def _seen(values: Mapping[str, Any], fqn: str, tensors: list[tuple[str, Tensor]]) -> ModuleTensors:
    return ModuleTensors(
        values["kind"],
        fqn,
        values.get("type") or "",
        values.get("call") or 0,
        values.get("index") or 0,
        tensors,
        batch=values.get("batch") or 0,
        passed=values.get("pass") or 0,
        source=values.get("source") or "",
    )
