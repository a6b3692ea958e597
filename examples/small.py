"""A small network, and its .onnx files: `python examples/small.py` writes small.onnx and small-int8.onnx anew."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.act = nn.ReLU()
            self.pool = nn.MaxPool2d(2)
            self.fc = nn.Linear(8 * 4 * 4, 10)
            nn.init.normal_(self.norm.weight, 1, 0.2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.pool(self.act(self.norm(self.conv(x)))).flatten(1))
        return out


def main() -> None:
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    folder = Path(__file__).parent
    file = folder / "small.onnx"
    torch.onnx.export(Net().eval(), (torch.randn(2, 3, 8, 8),), file, dynamo=True, external_data=False, verbose=False)
    model = onnx.load(file)
    for node in model.graph.node:  # without the paths of this machine
        kept = [prop for prop in node.metadata_props if prop.key.endswith("name_scopes")]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    onnx.save(model, file)
    quantize_dynamic(file, folder / "small-int8.onnx")


if __name__ == "__main__":
    main()
