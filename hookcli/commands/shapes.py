"""hookcli shapes"""

from __future__ import annotations

from hookcli.commands.common import inspect_model
from hookcli.commands.options import DEFAULT_MODEL, Model, Options
from hookcli.registry import load

EXAMPLES = (
    "hookcli shapes resnet50",
    "hookcli shapes vit_b_16 --depth all --columns fqn,output_shape,macs",
    "hookcli shapes net.py:Net --input 8x1x28x28 --output shapes.json",
)


def shapes(model: Model = DEFAULT_MODEL, *, options: Options) -> int:
    """Shapes, parameters and MACs of every module.

    Needs no compute where the model can run on the meta device, which most can.
    """
    return inspect_model(model, load("probes", "shapes"), options)
