"""hookcli flow"""

from __future__ import annotations

from typing import Annotated

from hookcli.capabilities.flow.layout import COLUMNS as COLUMNS
from hookcli.commands.options import DEFAULT_MODEL, SEVERAL, Model, Options, all_but
from hookcli.commands.probe_command import inspect_model
from hookcli.registry import load

EXAMPLES = (
    "hookcli flow resnet50 --output resnet50.svg",
    "hookcli flow net.py:Net --input 2x8 --depth all --output net.png",
    "hookcli flow vit_b_16 --format json",
)
FIRST = "weights input batch_size train depth columns format output"
_Options = Annotated[Options, all_but("match", "type", "sort", "batches", "ops", *SEVERAL)]


def flow(model: Model = DEFAULT_MODEL, *, options: _Options) -> int:
    """Show how tensors flow forward; draw the architecture.

    Forward only: `hookcli graph` shows the nodes of backward, `hookcli trace` every hook in both, over time.

    A row per call of a module without parts, or of a function between modules, in the order of execution, with the
    calls that its inputs come from. As SVG, PNG or DOT it is a picture with skip connections; SVG and PNG need
    Graphviz's program `dot`. Most models run on the meta device, without compute.
    """
    return inspect_model(model, load("probes", "flow"), options)
