"""Every firing of every kind of hook, in the order in which PyTorch calls them."""

from hookcli.registry.capability import Capability

_STEPS = ("optimizer_step_pre", "optimizer_step_post")
_OF = ("", "load_", "optimizer_", "optimizer_load_")
_DICTS = tuple(f"{of}state_dict_{when}" for of in _OF for when in ("pre", "post"))
_EVERYWHERE = ("forward_pre", "forward", "full_backward_pre", "full_backward", *_STEPS)

CAPABILITY = Capability(
    name="trace",
    page="commands.md",
    after="graph grads",
    summary="Show every hook that fires, in order, with time and memory.",
    command="hookcli.capabilities.trace.command",
    probe="hookcli.capabilities.trace.probe:TraceProbe",
    hooks={
        **dict.fromkeys(("module_registration", "parameter_registration", "buffer_registration"), "trace"),
        **dict.fromkeys(("tensor_grad_parameter", "multi_grad", "engine_callback"), "trace"),
        **dict.fromkeys(("saved_tensor_pack", "saved_tensor_unpack"), "trace"),
        **dict.fromkeys((*_STEPS, *_DICTS), "trace"),
        **{f"{kind}, global": "trace --global" for kind in _EVERYWHERE},
    },
    hints={"workspaces": "`hookcli trace --summary` measures them"},
    pictures=("spans",),
    complete=True,
    shortens=True,
)
