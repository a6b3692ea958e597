"""Runs the model of an .onnx file under ONNX Runtime, on the arguments that a PyTorch model gets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from hookcli.capabilities.onnx.graph import acting_in_training, operators, read_onnx
from hookcli.capabilities.onnx.pairs import Pairing
from hookcli.capabilities.onnx.sessions import dtypes, run_session, session_options, why_failed
from hookcli.diff.align import Alignment, NamedPart
from hookcli.engine.lockstep.dump_comparison import DumpComparison, Wanted, key_of
from hookcli.engine.lockstep.lockstep import A
from hookcli.engine.lockstep.module_tensors import OUTPUT
from hookcli.errors import UsageError
from hookcli.hooks.session import HookSession
from hookcli.table import Row, Skipped
from hookcli.table.dump import Dump
from hookcli.table.formatting import listed, shape
from hookcli.tensors import tree
from hookcli.tensors.files.dump_reader import DumpReader

_LISTED = 4
Arguments = tuple[tuple[object, ...], Mapping[str, object]]


class OnnxModel(DumpReader):
    """The model of an .onnx file, as a dump whose tensors ONNX Runtime computes, a batch at a time.

    Raises UsageError where it can't be read or run.
    """

    def __init__(self, file: str) -> None:
        super().__init__(file, Dump("", ()))
        self._model = read_onnx(file)
        weights = {tensor.name for tensor in self._model.graph.initializer}
        inputs = {one.name: one.type.tensor_type for one in self._model.graph.input if one.name not in weights}
        self._dtypes = {name: dtypes().get(one.elem_type) for name, one in inputs.items()}
        dims = {name: one.shape.dim for name, one in inputs.items() if one.HasField("shape")}
        self._sizes = {name: [max(dim.dim_value, 0) for dim in own] for name, own in dims.items()}  # 0: any
        self._parameters: Sequence[str] = ()
        self._session: Any = None
        self._values: dict[str, Tensor] = {}

    @property
    def input_shapes(self) -> list[str]:
        """The shapes of its inputs, as --input takes them; none unless all are fixed."""
        fixed = {name: "x".join(map(str, sizes)) for name, sizes in self._sizes.items() if sizes and 0 not in sizes}
        kinds = {name: f":{str(dtype).removeprefix('torch.')}" for name, dtype in self._dtypes.items()}
        shapes = [size + ("" if "float" in kinds[name] else kinds[name]) for name, size in fixed.items()]
        return shapes if fixed.keys() == kinds.keys() else []

    @property
    def in_training(self) -> str:
        """A sentence saying that the model was exported in train mode; "" if no operator shows that."""
        acting = [f"{number} {kind}" for kind, number in acting_in_training(self._model.graph).items()]
        if not acting:
            return ""
        return f"{self.folder} was exported in train mode ({' and '.join(acting)} act as in training)"

    def pair_with(self, model: nn.Module, calls: Sequence[Row], call: Arguments) -> Pairing:
        """Run it on a model's first batch, and pair its values with the rows of what the model's calls returned."""
        with suppress(TypeError, ValueError):  # a forward without a signature
            self._parameters = [*inspect.signature(model.forward).parameters]
        relus = [row.fqn for row in calls if row["type"] == "ReLU"]
        graph, outputs = self._model.graph, [value.name for value in self._model.graph.output]
        pairing = Pairing(self.folder, operators(graph, {row.fqn for row in calls}, relus), outputs, calls)
        for name in (candidates := pairing.candidates())[len(outputs) :]:
            graph.output.add().name = name
        self._run(candidates, call)
        pairing.pair({name: (tuple(x.shape), x.is_floating_point()) for name, x in self._values.items()})
        names, rows = pairing.alignment.in_a, []
        fixed = {"kind": OUTPUT, "batch": 0, "pass": 0, "source": "", "shape": None}
        for row in calls:
            if value := pairing.values.get((row.fqn, row["call"], row["path"])):
                place = {name: row[name] for name in ("type", "call", "index", "path")}
                rows.append(Row({**place, **fixed, "fqn": names.get(row.fqn, row.fqn), "file": value, "name": value}))
        self.dump = Dump("", rows)
        return pairing

    def advance(self, batch: int, call: Arguments) -> list[Row]:
        """Run the model on another batch than the first. Return the batch's rows."""
        if batch:
            self._run([*dict.fromkeys(row["file"] for row in self.dump.tensors)], call)
        return [Row({**row.values, "batch": batch}) for row in self.dump.tensors]

    def load(self, row: Row) -> Tensor:
        """The value of a row of the latest batch."""
        return self._values[row["file"]]

    def _run(self, names: Sequence[str], call: Arguments) -> None:
        from onnxruntime import OrtValue

        tensors = self._given(*call)
        try:
            tensors = {name: x.detach().to("cpu", self._dtypes[name]).contiguous() for name, x in tensors.items()}
            self._session = self._session or _session(self._model, Path(self.folder).parent)
            feed = {name: OrtValue.ortvalue_from_numpy(x.numpy()) for name, x in tensors.items()}
            values = zip(names, run_session(self._session, names, feed), strict=True)
            self._values = {name: from_dlpack(value) for name, value in values if value.is_tensor()}
        except Exception as error:
            why = why_failed(error)
            raise UsageError(f"{self.folder}: ONNX Runtime can't run it on this input: {why}") from error

    def _given(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, Tensor]:
        """The graph's inputs: arguments of the same names, else all in the order of the graph's."""
        named = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        by_name = {name: x for name, x in named.items() if isinstance(x, Tensor)}
        if not by_name.keys() >= self._dtypes.keys():
            tensors = tree.received(args, dict(kwargs))
            if len(tensors) != len(self._dtypes):
                takes, ours = (listed(names, _LISTED) for names in ([*self._dtypes], [*map(tree.shape_text, tensors)]))
                raise UsageError(f"{self.folder}: takes {takes}; the PyTorch model gets {ours or 'nothing'}")
            by_name = dict(zip(self._dtypes, tensors, strict=True))
        for name, sizes in self._sizes.items():
            own = tree.shape_of(by_name[name])
            if len(sizes) != len(own) or any(a not in (0, b) for a, b in zip(sizes, own, strict=True)):
                takes = "x".join(str(size or "N") for size in sizes) or "a scalar"
                raise UsageError(f"{self.folder}: takes {takes} as {name}, and gets {shape(own)}")
        return {name: by_name[name] for name in self._dtypes}


def _session(model: Any, folder: Path) -> Any:
    """A session for a whole model, whose weights may be in files of its folder."""
    import onnxruntime

    options = session_options(torch.get_num_threads())
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class OnnxComparison(DumpComparison):
    """A comparison of an .onnx file, which is side `side`, with a PyTorch model that runs.

    A tensor without a counterpart is not a difference: exporters merge operators. It is listed with the reason.
    """

    reader: OnnxModel

    def __init__(
        self, reader: OnnxModel, pairing: Pairing, side: int, modules: Sequence[NamedPart], wanted: Wanted
    ) -> None:
        self._pairing = pairing
        super().__init__(reader, side, modules, wanted)

    def aligned(self, modules: Sequence[NamedPart], other: Dump | None) -> Alignment:
        pairing = self._pairing
        paired, names = {fqn for fqn, *_ in pairing.values}, pairing.alignment.in_a
        both = [(part._replace(fqn=names.get(part.fqn, part.fqn)), part) for part in modules if part.fqn in paired]
        called, known = {row.fqn for row in pairing.calls}, {part.fqn for part in modules}
        alone = (
            [part for part in pairing.alignment.removed if part.fqn not in known],
            [part for part in modules if part.fqn in called - paired],
        )
        return Alignment(both, *alone) if self.side == A else Alignment([(b, a) for a, b in both], *alone[::-1])

    def begin(
        self, session: HookSession, args: tuple[object, ...], kwargs: Mapping[str, object], target: object
    ) -> None:
        super().begin(session, args, kwargs, target)
        rows = self.reader.advance(session.batch_number, (args, kwargs))
        self._rows |= {key_of(row.values, row.fqn): row for row in rows}

    def take(self, values: Mapping[str, Any], tensor: Tensor | Callable[[], Tensor]) -> None:
        fqn, pairing = values["fqn"], self._pairing
        if (fqn, values["call"], values["path"]) in pairing.values:
            super().take(values, tensor)
        elif self._wanted(OUTPUT, fqn, values["type"] or ""):
            self._skipped[Skipped(fqn, pairing.reasons.get(fqn, "not called in the first batch"), values["path"])] = (
                None
            )
