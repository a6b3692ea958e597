"""Every kind of hook in PyTorch: when it fires, the call that registers it, and the command that shows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    call: str
    command: str


_M, _G, _A, _O = "nn.Module.", "nn.modules.module.", "autograd.graph.", "optim.Optimizer."
HOOKS = (
    HookInfo(
        "module_registration", "a submodule is assigned", f"{_G}register_module_module_registration_hook", "trace"
    ),
    HookInfo(
        "parameter_registration", "a parameter is assigned", f"{_G}register_module_parameter_registration_hook", "trace"
    ),
    HookInfo("buffer_registration", "a buffer is assigned", f"{_G}register_module_buffer_registration_hook", "trace"),
    HookInfo("forward_pre", "before a module's forward", f"{_M}register_forward_pre_hook", "inputs"),
    HookInfo("forward", "after a module's forward", f"{_M}register_forward_hook", "activations"),
    HookInfo(
        "forward_pre, global", "before any module's forward", f"{_G}register_module_forward_pre_hook", "trace --global"
    ),
    HookInfo("forward, global", "after any module's forward", f"{_G}register_module_forward_hook", "trace --global"),
    HookInfo(
        "full_backward_pre",
        "the gradients of a module's outputs have arrived",
        f"{_M}register_full_backward_pre_hook",
        "grads --of outputs --via module",
    ),
    HookInfo(
        "full_backward",
        "the gradients of a module's inputs have arrived",
        f"{_M}register_full_backward_hook",
        "grads --of inputs --via module",
    ),
    HookInfo(
        "full_backward_pre, global",
        "as full_backward_pre, of any module",
        f"{_G}register_module_full_backward_pre_hook",
        "trace --global",
    ),
    HookInfo(
        "full_backward, global",
        "as full_backward, of any module",
        f"{_G}register_module_full_backward_hook",
        "trace --global",
    ),
    HookInfo(
        "backward, legacy", "the module's last operation is done (deprecated)", f"{_M}register_backward_hook", "hooks"
    ),
    HookInfo(
        "tensor_grad_output",
        "the gradient of what a module returned has arrived",
        "Tensor.register_hook",
        "grads --of outputs",
    ),
    HookInfo(
        "tensor_grad_input",
        "the gradient of what a module received has arrived",
        "Tensor.register_hook",
        "grads --of inputs",
    ),
    HookInfo("tensor_grad_parameter", "before a parameter's .grad is added to", "Tensor.register_hook", "trace"),
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
        "trace",
    ),
    HookInfo("node_creation", "an operation makes a node (torch 2.15)", f"{_A}node_creation_hook", "graph"),
    HookInfo("node_pre", "before an autograd node runs", f"{_A}Node.register_prehook", "graph"),
    HookInfo("node", "after an autograd node ran", f"{_A}Node.register_hook", "graph"),
    HookInfo(
        "node, of a parameter",
        "around the addition to .grad (AccumulateGrad)",
        f"{_A}get_gradient_edge(p).node.register_hook",
        "graph",
    ),
    HookInfo("engine_callback", "a backward pass is over", f"{_A}queue_callback", "trace"),
    HookInfo("saved_tensor_pack", "a tensor is kept for backward", f"{_A}saved_tensors_hooks", "trace"),
    HookInfo("saved_tensor_unpack", "backward fetches a kept tensor", f"{_A}saved_tensors_hooks", "trace"),
    HookInfo("optimizer_step_pre", "before an optimizer's step", f"{_O}register_step_pre_hook", "trace"),
    HookInfo("optimizer_step_post", "after an optimizer's step", f"{_O}register_step_post_hook", "trace"),
    HookInfo(
        "optimizer_step_pre, global",
        "before any optimizer's step",
        "optim.optimizer.register_optimizer_step_pre_hook",
        "trace --global",
    ),
    HookInfo(
        "optimizer_step_post, global",
        "after any optimizer's step",
        "optim.optimizer.register_optimizer_step_post_hook",
        "trace --global",
    ),
    HookInfo("state_dict_pre", "before state_dict(), parents first", f"{_M}register_state_dict_pre_hook", "trace"),
    HookInfo("state_dict_post", "after state_dict(), parts first", f"{_M}register_state_dict_post_hook", "trace"),
    HookInfo(
        "load_state_dict_pre",
        "before a module takes its part of load_state_dict()",
        f"{_M}register_load_state_dict_pre_hook",
        "trace",
    ),
    HookInfo("load_state_dict_post", "after load_state_dict()", f"{_M}register_load_state_dict_post_hook", "trace"),
    HookInfo(
        "optimizer_state_dict_pre", "before an optimizer's state_dict()", f"{_O}register_state_dict_pre_hook", "trace"
    ),
    HookInfo(
        "optimizer_state_dict_post", "after an optimizer's state_dict()", f"{_O}register_state_dict_post_hook", "trace"
    ),
    HookInfo(
        "optimizer_load_state_dict_pre",
        "before an optimizer's load_state_dict()",
        f"{_O}register_load_state_dict_pre_hook",
        "trace",
    ),
    HookInfo(
        "optimizer_load_state_dict_post",
        "after an optimizer's load_state_dict()",
        f"{_O}register_load_state_dict_post_hook",
        "trace",
    ),
    HookInfo(
        "comm",
        "a bucket of gradients is ready to be reduced",
        "nn.parallel.DistributedDataParallel.register_comm_hook",
        "comm",
    ),
    HookInfo(
        "collective",
        "a process group is about to issue a collective (torch 2.15)",
        "distributed.ProcessGroup.register_pre_hook",
        "comm",
    ),
    HookInfo("package extern", "a module stays outside a package", "PackageExporter.register_extern_hook", "package"),
    HookInfo("package intern", "a module goes into a package", "PackageExporter.register_intern_hook", "package"),
    HookInfo("package mock", "a module is replaced by a mock", "PackageExporter.register_mock_hook", "package"),
    HookInfo("C++ tensor", "as Tensor.register_hook", "Tensor::register_hook", "graph --native --call grad"),
    HookInfo("C++ node, before", "as node_pre, without the GIL", "Node::add_pre_hook", "graph --native"),
    HookInfo("C++ node, after", "as node, without the GIL", "Node::add_post_hook", "graph --native"),
    HookInfo(
        "C++ capture",
        "torch.autograd.grad takes a gradient (deprecated upstream)",
        "Capture::DO_NOT_USE_DEPRECATED_register_capture_hook",
        "graph --native --call grad",
    ),
    HookInfo("C++ engine", "a backward pass is over", "Engine::queue_callback", "graph --native"),
)
