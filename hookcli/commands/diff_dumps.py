"""Compares a dump with a model or another dump: sides of `hookcli diff` that `--dump` has written. Imports torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args, get_type_hints

from hookcli.commands.diff_models import ModelRuns
from hookcli.commands.diff_sides import BuiltSide, common_input, parse_side
from hookcli.commands.options import DATA, GENERATED, Options
from hookcli.commands.output import remark
from hookcli.commands.progress import Progress
from hookcli.commands.run_options import StepOptions
from hookcli.commands.tensor_commands import REPEATED
from hookcli.diff.align import NamedPart
from hookcli.diff.tolerance import Tolerance
from hookcli.engine.batches import DataBatches
from hookcli.engine.lockstep.dump_comparison import DumpComparison, Wanted, compare_dumps, in_common, parts_of
from hookcli.engine.lockstep.side import operators_of, unseen_parts
from hookcli.engine.run_info import model_dtype
from hookcli.errors import HookcliError, UsageError, kept_if_interrupted, shortened
from hookcli.probes.base import Probe
from hookcli.registry import load
from hookcli.sources.data.base import AllInput, Batches, Data
from hookcli.table import Report
from hookcli.table.dump import GRADIENTS, KINDS, Dump, is_dump
from hookcli.table.meta import only
from hookcli.table.names import checked_filter, operator_owner
from hookcli.tensors.files.dump_reader import DumpReader
from hookcli.tensors.tree import type_text

_INPUT = {*GENERATED, *DATA}
_ALIKE = 0.5  # share of a dump's modules that a version of the same model has
_PROBES = {
    "output": ("activations",),
    "input": ("inputs",),
    "grad": ("grads", "parameters"),
    "grad_output": ("grads", "outputs"),
    "grad_input": ("grads", "inputs"),
}


@dataclass(frozen=True)
class DumpRuns:
    """A comparison with a dump; `typed` are the names of the options that the command line gives."""

    options: Options
    step: StepOptions
    typed: Collection[str]
    tolerance: Tolerance
    progress: Progress

    def compare(self, a: str, b: str) -> Report:
        """The report of two sides, one at least a dump. The error of a failing model has the report until then."""
        if is_dump(a) and is_dump(b):
            ours, theirs = DumpReader(a), DumpReader(b)
            self.progress.stage(f"comparing {ours.folder} and {theirs.folder}")
            self._require_operators(ours, theirs)
            ours, theirs = self._without_lone_operators(ours, theirs), self._without_lone_operators(theirs, ours)
            parts = parts_of(theirs.dump, parts_of(ours.dump))
            self._check_model(ours, parts, theirs.folder)
            wanted = self.wanted(ours.dump, parts)
            return compare_dumps(ours, theirs, wanted, self.tolerance, {"dump": _probes(ours.dump)})
        texts = a, b
        side = 0 if is_dump(a) else 1
        reader = DumpReader(texts[side])
        self._require_operators(reader)
        options, step = self._repeated(reader)
        spec = parse_side("AB"[1 - side], texts[1 - side], options)
        if spec.file:
            raise UsageError(f"{spec.label} {spec.text!r}: a saved report can't be compared with a dump; give a model")
        backward = any(kind in GRADIENTS for kind in reader.dump.kinds)
        live = ModelRuns(options, self.progress, step.make(), backward)
        built = live.built(spec, backward)
        parts = [NamedPart(fqn, type_text(module)) for fqn, module in built.prepared.model.named_modules()]
        self._check_model(reader, parts, built.recipe.name)
        data = self._batches(reader, built)
        if data is None:
            common = common_input(built, built, options, backward)
            inputs, described, data = common.first[0], common.described, common.of_side(0)
        else:
            inputs, described = data.first.inputs, str(reader.dump.meta.get("input", data.first.described))
        model_side = live.side(built, inputs)
        unseen = unseen_parts(model_side.model, model_side.compile)
        if options.ops:
            parts += operators_of(model_side, live.step_of(built, backward), options.ops, unseen)
        comparison = DumpComparison(reader, side, parts, self.wanted(reader.dump, parts), unseen=unseen)
        return self.observed(comparison, live, built, (inputs, described, data), texts)

    def observed(
        self,
        comparison: DumpComparison,
        live: ModelRuns,
        built: BuiltSide,
        common: tuple[Any, str, DataBatches | None],
        texts: tuple[str, str],
    ) -> Report:
        """The report of a comparison with a model that runs now, on what is `common`: the input, in words, and data."""
        dump = comparison.reader.dump
        asked = [_PROBES[kind] for kind in KINDS if kind in dump.kinds]
        probes: list[Probe] = [load("probes", name)(*of, sink=comparison) for name, *of in asked]
        inputs, described, data = common

        def report(*, complete: bool) -> Report:
            meta = only(comparison.meta, "seconds", "hookcli_seconds", "error")
            meta |= {"dump": _probes(dump), "complete": complete}
            return comparison.report(self.tolerance, " → ".join(texts), meta)

        try:
            with kept_if_interrupted(lambda: [report(complete=False)]):
                live.observed(built, inputs, described, probes, comparison.select, data)
        except HookcliError as error:
            raise type(error)(f"{built.spec.label}: {error}", (report(complete=False),)) from error
        return report(complete=True)

    def _repeated(self, reader: DumpReader) -> tuple[Options, StepOptions]:
        """The options, and the dump's where none is typed. Raises UsageError if the latter name code to run."""
        dump = reader.dump
        left = {name: value for name, value in dump.options.items() if name in REPEATED and name not in self.typed}
        if dump.has_inputs or _INPUT & {*self.typed}:
            left = {name: value for name, value in left.items() if name not in _INPUT}
        if "train" not in self.typed and dump.meta.get("mode") in ("train", "eval"):
            left["train"] = dump.meta["mode"] == "train"
        for name in ("data", "loss"):
            if ":" in str(left.get(name) or ""):
                option = f"--{name} {shortened(str(left[name]))}"
                wrong = f"{reader.folder}: its run had {option}, which names code to run: add that option yourself"
                raise UsageError(wrong, option=name)
        try:
            return _with(self.options, left), _with(self.step, left)
        except ValueError as error:
            raise UsageError(f"{reader.folder}: damaged: among its options, {error}") from error

    def _batches(self, reader: DumpReader, built: BuiltSide) -> DataBatches | None:
        """The dump's own input; None if it has none, or another one is asked for."""
        number = len(reader.dump.inputs)
        if not reader.dump.has_inputs or _INPUT & {*self.typed}:
            return None

        def each() -> Iterator[AllInput]:
            for batch in range(number):
                args, kwargs, target = reader.arguments(batch)
                yield AllInput(kwargs or args, target=target)

        model = built.prepared.model
        cast = None if str(model_dtype(model)) == f"torch.{reader.dump.meta.get('dtype')}" else model_dtype(model)
        data = Data(f"the dump {reader.folder}", lambda *_: Batches(each(), number), number)
        return DataBatches(built.recipe, model, replace(built.setting, data=data, batch=None), cast)

    def _require_operators(self, *readers: DumpReader) -> None:
        """Raises UsageError if --ops asks for operators that a dump does not have."""
        for reader in readers:
            if self.options.ops and not _has_operators(reader.dump):
                raise UsageError(f"--ops: {reader.folder} has no operators; write the dump with --ops", option="ops")

    def _without_lone_operators(self, reader: DumpReader, other: DumpReader) -> DumpReader:
        """The dump without operators if the other has none, which says nothing of the models."""
        if not _has_operators(reader.dump) or _has_operators(other.dump):
            return reader
        remark(f"{other.folder} has no operators: the operators of {reader.folder} are left out", self.options)
        left = [row for row in reader.dump.tensors if operator_owner(row.fqn) is None]
        return DumpReader(reader.folder, replace(reader.dump, tensors=left))

    def wanted(self, dump: Dump, others: list[NamedPart]) -> Wanted:
        """The test of tensors by --match and --type. Raises UsageError for names that nothing has."""
        names = {place.fqn: place.type for place in parts_of(dump, others)}
        names |= {row.fqn: "" for row in dump.tensors if row["kind"] == "grad"}
        only = self.options.type
        matches = checked_filter(self.options.match, only, names)
        return lambda kind, fqn, type_: matches(fqn, "" if kind == "grad" else type_) and only in (None, type_)

    def _check_model(self, reader: DumpReader, parts: list[NamedPart], other: str) -> None:
        """Say that a dump is of another model. Raises UsageError if they have nothing in common."""
        common, number = in_common(reader.dump, parts)
        of = f"a dump of {reader.dump.model}" if reader.dump.model else "a dump"
        if not reader.dump.held:
            raise UsageError(f"{reader.folder}: holds no tensors ({of})")
        if number and not common and any(place.fqn for place in parts):
            raise UsageError(f"{reader.folder}: {of}, another model than {other}: they have no module in common")
        if common < _ALIKE * number:
            remark(f"{reader.folder} is {of}: {other} has {common} of its {number} modules", self.options)


def _has_operators(dump: Dump) -> bool:
    return any(operator_owner(row.fqn) is not None for row in dump.tensors)


def _with(options: Any, values: dict[str, object]) -> Any:
    """The options with the values that they have. Raises ValueError for a value of another type."""
    hints = get_type_hints(type(options))
    fitting = {name: value for name, value in values.items() if name in hints}
    for name, value in fitting.items():
        kind = list[str] if isinstance(value, list) and all(isinstance(item, str) for item in value) else type(value)
        if kind not in (hints[name], *get_args(hints[name])):
            raise ValueError(f"{name} is {shortened(repr(value))}")
    return replace(options, **fitting)


def _probes(dump: Dump) -> str:
    return ", ".join(dict.fromkeys(_PROBES[kind][0] for kind in KINDS if kind in dump.kinds))
