"""Models in .onnx files, which ONNX Runtime runs: alone, and beside the PyTorch model that a file came from."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="onnx",
    page="questions/onnx.md",
    source="hookcli.capabilities.onnx.source:OnnxSource",
    suffix=".onnx",
    side="hookcli.capabilities.onnx.side:OnnxFiles",
    extra="onnx",
)
