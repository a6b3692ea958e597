"""Compares what ONNX Runtime computes from an .onnx file with the PyTorch model that it came from."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="onnx",
    page="dumps.md",
    source="hookcli.capabilities.onnx.source:OnnxSource",
    suffix=".onnx",
    side="hookcli.capabilities.onnx.side:OnnxFiles",
    extra="onnx",
)
