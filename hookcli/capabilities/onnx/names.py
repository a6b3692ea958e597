"""How a text names an .onnx file."""

from __future__ import annotations

from hookcli.system.files import is_file

SUFFIX = ".onnx"


def names_onnx(text: str) -> bool:
    """True for an argument that names an .onnx file rather than a model with options."""
    return text.endswith(SUFFIX) and (is_file(text) or not any(mark in text for mark in (":", " -")))
