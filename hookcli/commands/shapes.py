"""hookcli shapes"""

from __future__ import annotations

from typing import Annotated

from hookcli.commands.options import DEFAULT_MODEL, SEVERAL, Model, Options, all_but
from hookcli.commands.probe_command import inspect_model
from hookcli.registry import load
from hookcli.report.columns import SHAPES

EXAMPLES = (
    "hookcli shapes resnet50",
    "hookcli shapes vit_b_16 --depth all --columns fqn,output_shape,macs",
    "hookcli shapes net.py:Net --input 8x1x28x28 --output shapes.json",
)
COLUMNS = SHAPES


def shapes(model: Model = DEFAULT_MODEL, *, options: Annotated[Options, all_but("batches", *SEVERAL)]) -> int:
    """Show shapes, parameters and MACs of modules, and training memory.

    Needs no compute for models that run on the meta device; most do.
    """
    return inspect_model(model, load("probes", "shapes"), options)
