"""hookcli shapes"""

from __future__ import annotations

from typing import Annotated

from hookcli.commands.cached_report import CachedReport
from hookcli.commands.options import DEFAULT_MODEL, SEVERAL, CacheOptions, Model, Options, TimeOptions, all_but
from hookcli.commands.output import Output
from hookcli.commands.probe_command import RunOptions, inspect_model
from hookcli.registry import load
from hookcli.table.columns.layouts import SHAPES

EXAMPLES = (
    "hookcli shapes resnet50",
    "hookcli shapes vit_b_16 --depth all --columns fqn,output_shape,macs",
    "hookcli shapes swin_t --ops --type softmax",
    "hookcli shapes resnet50 --time --sort -forward_self_us",
    "hookcli shapes net.py:Net --input 8x1x28x28 --output shapes.json",
)
COLUMNS = SHAPES


def shapes(
    model: Model = DEFAULT_MODEL,
    *,
    options: Annotated[Options, all_but("batches", *SEVERAL)],
    timing: TimeOptions,
    caching: CacheOptions,
) -> int:
    """Show shapes, parameters and MACs of modules, and training memory.

    Most models run on the meta device, which computes nothing; with --time they run on the device. Reports on library
    models are cached until the library or an option changes.
    """
    cached = CachedReport("shapes", model, options, wanted=caching.cache and not timing.time)
    if reports := cached.get():
        output = Output(options)
        output.check_columns(reports[0].columns)
        output.write(reports)
        return 0
    return inspect_model(model, load("probes", "shapes"), options, RunOptions(time=timing.time), keep=cached.put)
