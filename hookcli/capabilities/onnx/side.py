"""An .onnx file as a side of `hookcli diff`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hookcli.capabilities.onnx.names import SUFFIX, names_onnx
from hookcli.commands.diff_kinds import Asked, Side
from hookcli.commands.diff_verdict import compare_tensors
from hookcli.table.dump import is_dump
from hookcli.table.files import looks_saved

if TYPE_CHECKING:
    from hookcli.capabilities.onnx.runs import OnnxRuns


class OnnxFiles(Side):
    """Files that ONNX Runtime runs on the input of a PyTorch model."""

    what = ".onnx files"
    place = 1
    no_operators = "an .onnx file has no operators of PyTorch; leave it out"

    def fits(self, text: str) -> bool:
        """True for an argument that names an .onnx file rather than a model with options."""
        return names_onnx(text)

    def is_kind_of(self, texts: Sequence[str]) -> bool:
        """True for one with a PyTorch model. Two, with or without options, are compared as models; so is one with a
        saved report or a dump."""
        others = [text for text in texts if not self.fits(text)]
        as_models = (text.partition(" ")[0].endswith(SUFFIX) or looks_saved(text) or is_dump(text) for text in others)
        return len(others) < len(texts) and not all(as_models)

    def compare(self, asked: Asked) -> int:
        return compare_tensors(asked, onnx_runs)


def onnx_runs() -> type[OnnxRuns]:
    """Import what compares .onnx files, and torch."""
    from hookcli.capabilities.onnx.runs import OnnxRuns

    return OnnxRuns
