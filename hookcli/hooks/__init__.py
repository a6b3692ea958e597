"""The only package that registers PyTorch's hooks. A `HookSession` puts them on, and takes all of them off again."""

from hookcli.events import HookEvent, HookKind, Made
from hookcli.hooks.building import parameters_on_meta, registrations
from hookcli.hooks.modules import compiled_parts, uncompiled
from hookcli.hooks.parameters import selects_parameter
from hookcli.hooks.session import HookSession, Select

__all__ = [
    "HookEvent",
    "HookKind",
    "HookSession",
    "Made",
    "Select",
    "compiled_parts",
    "parameters_on_meta",
    "registrations",
    "selects_parameter",
    "uncompiled",
]
