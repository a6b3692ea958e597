"""Every kind of hook in PyTorch: when it fires, the call that registers it, and the command that shows it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from hookcli.registry.capability import capabilities


class HookKind(StrEnum):
    """A kind of hook that a probe can ask for, named after PyTorch's hook."""

    MODULE_REGISTRATION = "module_registration"
    PARAMETER_REGISTRATION = "parameter_registration"
    BUFFER_REGISTRATION = "buffer_registration"
    FORWARD_PRE = "forward_pre"
    FORWARD = "forward"
    SAVED_TENSOR_PACK = "saved_tensor_pack"
    SAVED_TENSOR_UNPACK = "saved_tensor_unpack"
    NODE_CREATION = "node_creation"
    NODE_PRE = "node_pre"
    NODE = "node"
    FULL_BACKWARD_PRE = "full_backward_pre"
    FULL_BACKWARD = "full_backward"
    TENSOR_GRAD_OUTPUT = "tensor_grad_output"
    TENSOR_GRAD_INPUT = "tensor_grad_input"
    TENSOR_GRAD_PARAMETER = "tensor_grad_parameter"
    POST_ACCUMULATE_GRAD = "post_accumulate_grad"
    MULTI_GRAD = "multi_grad"
    ENGINE_CALLBACK = "engine_callback"
    OPTIMIZER_STEP_PRE = "optimizer_step_pre"
    OPTIMIZER_STEP_POST = "optimizer_step_post"
    STATE_DICT_PRE = "state_dict_pre"
    STATE_DICT_POST = "state_dict_post"
    LOAD_STATE_DICT_PRE = "load_state_dict_pre"
    LOAD_STATE_DICT_POST = "load_state_dict_post"
    OPTIMIZER_STATE_DICT_PRE = "optimizer_state_dict_pre"
    OPTIMIZER_STATE_DICT_POST = "optimizer_state_dict_post"
    OPTIMIZER_LOAD_STATE_DICT_PRE = "optimizer_load_state_dict_pre"
    OPTIMIZER_LOAD_STATE_DICT_POST = "optimizer_load_state_dict_post"


REGISTRATION = (HookKind.MODULE_REGISTRATION, HookKind.PARAMETER_REGISTRATION, HookKind.BUFFER_REGISTRATION)
FULL_BACKWARD = (HookKind.FULL_BACKWARD_PRE, HookKind.FULL_BACKWARD)
STATE_DICT = tuple(kind for kind in HookKind if "state_dict" in kind and "optimizer" not in kind)
STATE_DICTS = tuple(kind for kind in HookKind if "state_dict" in kind)
SAVED_TENSOR = (HookKind.SAVED_TENSOR_PACK, HookKind.SAVED_TENSOR_UNPACK)
OPTIMIZER = tuple(kind for kind in HookKind if kind.startswith("optimizer"))
NODE = (HookKind.NODE_CREATION, HookKind.NODE_PRE, HookKind.NODE, HookKind.ENGINE_CALLBACK)
# The kinds that need no backward pass.
FORWARD = (*REGISTRATION, HookKind.FORWARD_PRE, HookKind.FORWARD, *STATE_DICT)


@dataclass(frozen=True, slots=True)
class HookInfo:
    """One of PyTorch's ways to register a hook. `name`: a HookKind's value, where a session has that kind."""

    name: str
    fires: str
    registered_by: str
    command: str = ""
    """The command that shows it, "" if a capability's does."""


def _module(name: str, fires: str, command: str = "") -> HookInfo:
    return HookInfo(name, fires, f"nn.Module.register_{name}_hook", command)


def _any_module(name: str, fires: str) -> HookInfo:
    named = name if name.endswith("registration") else f"{name}, global"
    return HookInfo(named, fires, f"nn.modules.module.register_module_{name}_hook")


def _optimizer(name: str, fires: str) -> HookInfo:
    return HookInfo(f"optimizer_{name}", fires, f"optim.Optimizer.register_{name}_hook")


def _any_optimizer(name: str, fires: str) -> HookInfo:
    call = f"optim.optimizer.register_optimizer_{name}_hook"
    return HookInfo(f"optimizer_{name}, global", fires, call)


_A, _TENSOR = "autograd.graph.", "Tensor.register_hook"
_HOOKS = (
    _any_module("module_registration", "a submodule is assigned"),
    _any_module("parameter_registration", "a parameter is assigned"),
    _any_module("buffer_registration", "a buffer is assigned"),
    _module("forward_pre", "before a module's forward", "inputs"),
    _module("forward", "after a module's forward", "activations"),
    _any_module("forward_pre", "before any module's forward"),
    _any_module("forward", "after any module's forward"),
    _module("full_backward_pre", "the gradients of a module's outputs have arrived", "grads --of outputs --via module"),
    _module("full_backward", "the gradients of a module's inputs have arrived", "grads --of inputs --via module"),
    _any_module("full_backward_pre", "as full_backward_pre, of any module"),
    _any_module("full_backward", "as full_backward, of any module"),
    HookInfo(
        "backward, legacy",
        "the module's last operation is done (deprecated)",
        "nn.Module.register_backward_hook",
        "hooks",
    ),
    HookInfo("tensor_grad_output", "the gradient of what a module returned has arrived", _TENSOR, "grads --of outputs"),
    HookInfo("tensor_grad_input", "the gradient of what a module received has arrived", _TENSOR, "grads --of inputs"),
    HookInfo("tensor_grad_parameter", "before a parameter's .grad is added to", _TENSOR),
    HookInfo(
        "post_accumulate_grad",
        "after a parameter's .grad was added to",
        "Tensor.register_post_accumulate_grad_hook",
        "grads",
    ),
    HookInfo(
        "multi_grad",
        "all gradients of a group have arrived (of a module's parameters)",
        f"{_A}register_multi_grad_hook",
    ),
    HookInfo("node_creation", "an operation makes a node (torch 2.14)", f"{_A}node_creation_hook"),
    HookInfo("node_pre", "before an autograd node runs", f"{_A}Node.register_prehook"),
    HookInfo("node", "after an autograd node ran", f"{_A}Node.register_hook"),
    HookInfo(
        "node, of a parameter",
        "around the addition to .grad (AccumulateGrad)",
        f"{_A}get_gradient_edge(p).node.register_hook",
    ),
    HookInfo("engine_callback", "a backward pass is over", f"{_A}queue_callback"),
    HookInfo("saved_tensor_pack", "a tensor is kept for backward", f"{_A}saved_tensors_hooks"),
    HookInfo("saved_tensor_unpack", "backward fetches a kept tensor", f"{_A}saved_tensors_hooks"),
    _optimizer("step_pre", "before an optimizer's step"),
    _optimizer("step_post", "after an optimizer's step"),
    _any_optimizer("step_pre", "before any optimizer's step"),
    _any_optimizer("step_post", "after any optimizer's step"),
    _module("state_dict_pre", "before state_dict(), parents first"),
    _module("state_dict_post", "after state_dict(), parts first"),
    _module("load_state_dict_pre", "before a module takes its part of load_state_dict()"),
    _module("load_state_dict_post", "after load_state_dict()"),
    _optimizer("state_dict_pre", "before an optimizer's state_dict()"),
    _optimizer("state_dict_post", "after an optimizer's state_dict()"),
    _optimizer("load_state_dict_pre", "before an optimizer's load_state_dict()"),
    _optimizer("load_state_dict_post", "after an optimizer's load_state_dict()"),
    HookInfo(
        "comm",  # another word
        "a bucket of gradients is ready to be reduced",
        "nn.parallel.DistributedDataParallel.register_comm_hook",
    ),
    HookInfo(
        "collective",
        "a process group is about to issue a collective (torch 2.14)",
        "distributed.ProcessGroup.register_pre_hook",
    ),
    HookInfo("package extern", "a module stays outside a package", "PackageExporter.register_extern_hook"),
    HookInfo("package intern", "a module goes into a package", "PackageExporter.register_intern_hook"),
    HookInfo("package mock", "a module is replaced by a mock", "PackageExporter.register_mock_hook"),
    HookInfo("C++ tensor", "as Tensor.register_hook", "Tensor::register_hook"),
    HookInfo("C++ node, before", "as node_pre, without the GIL", "Node::add_pre_hook"),
    HookInfo("C++ node, after", "as node, without the GIL", "Node::add_post_hook"),
    HookInfo(
        "C++ capture",
        "torch.autograd.grad takes a gradient (deprecated upstream)",
        "Capture::DO_NOT_USE_DEPRECATED_register_capture_hook",
    ),
    HookInfo("C++ engine", "a backward pass is over", "Engine::queue_callback"),
)
_SHOWN = {kind: command for one in capabilities() for kind, command in one.hooks.items()}
HOOKS = tuple(replace(hook, command=_SHOWN.get(hook.name, hook.command)) for hook in _HOOKS)
"""All of PyTorch's ways to register a hook, each with the command that shows it."""
