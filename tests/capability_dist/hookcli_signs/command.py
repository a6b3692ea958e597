"""hookcli signs"""

from typing import Annotated

from hookcli.commands.options import SEVERAL, Model, Options, all_but
from hookcli.commands.probe_command import inspect_model
from hookcli.registry import load
from hookcli.table import columns_named

EXAMPLES = ("hookcli signs net.py:Net",)
COLUMNS = columns_named("fqn", "call", "positive", "largest")


def signs(model: Model, *, options: Annotated[Options, all_but("ops", *SEVERAL)]) -> int:
    """Show how many values of each layer are positive."""
    return inspect_model(model, load("probes", "signs"), options)
