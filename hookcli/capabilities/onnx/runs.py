"""Compares the model of an .onnx file with a PyTorch model: `hookcli diff net.py:Net net.onnx`. Imports torch."""

from __future__ import annotations

from dataclasses import replace

from hookcli.capabilities.onnx.model import OnnxComparison, OnnxModel
from hookcli.capabilities.onnx.names import names_onnx
from hookcli.commands.diff_dumps import DumpRuns
from hookcli.commands.diff_models import ModelRuns
from hookcli.commands.diff_sides import common_input, parse_side
from hookcli.commands.options import DATA
from hookcli.diff.align import NamedPart
from hookcli.engine.inputs import arguments
from hookcli.engine.preserve import copied
from hookcli.registry import load
from hookcli.table import Report
from hookcli.tensors.tree import type_text


class OnnxRuns(DumpRuns):
    """A comparison with an .onnx file, whose model gets the input of the PyTorch side."""

    def compare(self, a: str, b: str) -> Report:
        """The report of two sides, of which one is an .onnx file."""
        side = 0 if names_onnx(a) else 1
        file, other = (a, b)[side], (a, b)[1 - side]
        reader = OnnxModel(file)
        own = {"input", *DATA} & {*self.typed}
        options = self.options if own else replace(self.options, input=reader.input_shapes)
        spec = parse_side("AB"[1 - side], other, options)
        live = ModelRuns(options, self.progress, self.step.make())
        built = live.built(spec, False)
        common = common_input(built, built, options, False)
        first, model = common.first[0], built.prepared.model
        probe = load("probes", "activations")()
        calls = live.observed(built, copied(first), common.described, [probe], lambda *_: True)[0].rows
        self.progress.stage(f"running {file}")
        pairing = reader.pair_with(model, calls, arguments(first))
        parts = [NamedPart(fqn, type_text(module)) for fqn, module in model.named_modules()]
        comparison = OnnxComparison(reader, pairing, side, parts, self.wanted(reader.dump, parts))
        report = self.observed(comparison, live, built, (first, common.described, common.of_side(0)), (a, b))
        verdict = "; ".join(filter(None, (reader.in_training, str(report.totals["verdict"]))))
        return replace(report, totals={**report.totals, "verdict": verdict})
