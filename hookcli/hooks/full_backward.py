"""PyTorch's own backward hooks on modules: `register_full_backward_hook` and `register_full_backward_pre_hook`.

They pass every input and output of a module through a function whose results are views, so PyTorch raises in the
forward of a model that changes such a tensor in place. They see only tensors and tuples of tensors. If a module
receives or returns one tensor in several places, or returns a tensor that it received, the model goes on with several
tensors instead of one, and PyTorch's attention then takes another path. Such a run is stopped; a second run, without
these hooks, finds all such modules, and a third leaves them out.
"""

from __future__ import annotations

import traceback
import warnings
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import BackwardHook

from hookcli.errors import OneTensorError, RefusedError, message_of
from hookcli.hooks.events import HookEvent, PicklableHook
from hookcli.hooks.kinds import FULL_BACKWARD, HookKind
from hookcli.hooks.module_calls import HookedModule
from hookcli.hooks.modules import ModuleHooks
from hookcli.hooks.node_hooks import walk
from hookcli.hooks.session_core import HookGroup, Needs, SessionCore
from hookcli.hooks.torch_private.autograd import current_node, sequence_number
from hookcli.hooks.torch_private.modules import full_backward, global_full_backward, put_back_full_backward
from hookcli.tensors import tree
from hookcli.tensors.tree import Args, Kwargs

_APPLY = torch.autograd.function.__file__  # where a Function's `apply` is Python, as in torch 2.11
_LEGACY = (
    "has, or had, a hook of the deprecated register_backward_hook, so PyTorch refuses full backward hooks: "
    "`hookcli hooks` lists it; tensor hooks work here (hookcli grads without --via module)"
)
Grads = tuple[Tensor | None, ...] | Tensor


class FullBackwardHooks(HookGroup):
    """`full_backward_pre` and `full_backward`, from PyTorch's own hooks on modules."""

    kinds = FULL_BACKWARD
    needs = Needs.WATCHED_CALLS

    def __init__(self, core: SessionCore, modules: ModuleHooks) -> None:
        super().__init__(core)
        self._modules = modules
        self._fired: dict[tuple[HookKind, str], tuple[int, int]] = {}  # of how many calls, and how often since
        self._made: dict[str, list[tuple[int, int]]] = {}  # autograd's number of a call's last node, and the call
        self._noting = False
        self._left_out: frozenset[str] = frozenset()
        self._searching = self._searched = False
        self._one_tensor: set[str] = set()

    def leave_out(self, error: OneTensorError) -> None:
        """Use fewer hooks than the run that raised `error`: none, to find all such modules; then none on those."""
        self._searching, self._searched = not error.all, error.all
        if error.all:
            self._left_out |= error.fqns

    def start(self, kind: HookKind) -> None:
        if not self._noting:
            self._noting = True
            self.core.subscribe(HookKind.FORWARD_PRE, self._compare)  # before the hook replaces anything
            self.core.subscribe(HookKind.FORWARD, self._note)
            self.core.before_backward(self._check_one_tensor)
            for in_the_report in ("Full backward hook is firing", "For backward hooks to be called"):
                warnings.filterwarnings("ignore", in_the_report)
                self.core.stack.callback(_remove_filter, warnings.filters[0])
        watched = [] if self._searching else [h for h in self._modules.hooked.values() if h.watched]
        modules = [hooked for hooked in watched if hooked.fqn not in self._left_out]
        for hooked in modules:
            if full_backward(hooked.module) is False or global_full_backward() is False:
                where = f"{hooked.fqn or 'the model'} ({type(hooked.module).__name__})"
                raise RefusedError(f"{where} {_LEGACY}")
        if self.core.globally:
            by_id = {id(hooked.module): hooked for hooked in modules}

            def fired(module: nn.Module, *grads: Grads) -> None:
                if id(module) in by_id:
                    self._fire(kind, by_id[id(module)], module, *grads)

            self.core.stack.callback(put_back_full_backward(None))
            self.core.stack.enter_context(getattr(torch_module, f"register_module_{kind}_hook")(fired))
            return
        for hooked in modules:
            self.core.stack.callback(put_back_full_backward(hooked.module))
            register = getattr(hooked.module, f"register_{kind}_hook")
            self.core.stack.enter_context(register(PicklableHook(partial(self._fire, kind, hooked))))

    def _fire(self, kind: HookKind, hooked: HookedModule, module: nn.Module, *grads: Grads) -> None:
        """Emit an event. `grads`: the gradients that a pre-hook gets, of outputs; or a hook, of inputs and outputs."""
        *inputs, outputs = (grad if isinstance(grad, tuple) else (grad,) for grad in grads)
        grad_inputs = inputs[0] if inputs else ()
        call = self._call(hooked, at_input=any(grad is not None for grad in grad_inputs))
        if call is None:  # as after a recomputed forward: later calls' gradients come first
            calls = hooked.recomputed or hooked.calls
            of_calls, times = self._fired.get((kind, hooked.fqn), (calls, 0))
            times = times if of_calls == calls else 0
            self._fired[kind, hooked.fqn] = calls, times + 1
            call = max(calls - 1 - times, 0)
        event = HookEvent(kind, hooked.fqn, hooked.module, call, self.core.next_arrival())
        event.grad_inputs, event.grad_outputs = grad_inputs, outputs
        self.core.emit(event)

    def _note(self, event: HookEvent) -> None:
        """Note the numbers of a call's nodes: PyTorch does not say to which call a gradient belongs."""
        self._compare(event)
        numbers = [sequence_number(x.grad_fn) for _, x in tree.leaves(event.output) if x.grad_fn is not None]
        if numbers:
            self._made.setdefault(event.fqn, []).append((max(numbers), event.call))

    def _compare(self, event: HookEvent) -> None:
        """Stop a run where a hook replaces one tensor by several; not the caller's run, which can't be repeated."""
        if self.core.follow or event.fqn in self._left_out:
            return
        output = event.output if isinstance(event.output, tuple) else (event.output,)
        tensors = [x for x in (*event.args, *output) if isinstance(x, Tensor)]  # all that such a hook would replace
        # Without grad, this may be a checkpointed region, which runs again with gradients.
        replaced = any(x.requires_grad for x in tensors) if torch.is_grad_enabled() else self._searching
        if not replaced or len({id(x) for x in tensors}) == len(tensors):
            return
        self._one_tensor.add(event.fqn)
        if not self._searching:
            raise OneTensorError(self._one_tensor | self._left_out, all=self._searched)

    def _check_one_tensor(self, roots: object) -> None:
        if self._one_tensor or self._searching:
            raise OneTensorError(self._one_tensor, all=self._searching)

    def _call(self, hooked: HookedModule, at_input: bool) -> int | None:
        """Find the call whose hook fires: its node was created before the call's own nodes, or right after them."""
        made, node = self._made.get(hooked.fqn, []), current_node()
        if node is None or not made:
            return None
        place = bisect_left(made, (sequence_number(node), -1)) - (not at_input)
        return made[place][1] if 0 <= place < len(made) else None


def _remove_filter(entry: object) -> None:
    """Remove this filter only; filters that others added meanwhile stay."""
    with suppress(ValueError):
        warnings.filters.remove(entry)  # type: ignore[attr-defined]


def paths_of_outputs(output: object) -> list[str] | None:
    """Return the paths in an output that a full backward hook's gradients belong to; None if it does not fire."""
    if isinstance(output, Tensor):
        return [""]
    if isinstance(output, tuple) and any(isinstance(item, Tensor) for item in output):
        return [f".{name}" for name in output._fields] if hasattr(output, "_fields") else _indices(len(output))
    return None


def leads_to_another(outputs: Sequence[Tensor]) -> bool:
    """Return whether one of a module's outputs is computed from another, which then gets gradients through it.

    A full backward hook sees only the gradients that reach an output from outside of the module.
    """
    nodes = {y.grad_fn: None for y in outputs if y.grad_fn is not None}
    if len(nodes) < 2:
        return False
    oldest = min(map(sequence_number, nodes))
    made = walk(nodes, lambda node: sequence_number(node) >= oldest)
    return any(after in nodes for node in made for after, _ in node.next_functions)


def paths_of_inputs(args: Args, kwargs: Kwargs) -> list[str]:
    """Return the paths of the positional arguments; full backward hooks do not see keyword arguments."""
    return [""] if len(args) == 1 and not kwargs else _indices(len(args))


def _indices(count: int) -> list[str]:
    return [f"[{index}]" for index in range(count)]


def refuses_full_backward(error: BaseException | None) -> bool:
    """Return whether PyTorch stopped the model because of a full backward hook.

    The views that the hook makes can't be changed in place, and its function can't be called inside torch.func, or on
    strided nested tensors.
    """
    if not isinstance(error, RuntimeError):
        return False
    message = message_of(error)
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    seen = [frame.f_locals for frame in frames if frame.f_code.co_filename != _APPLY]
    by_hook = [isinstance(values.get("self"), BackwardHook) for values in seen]
    # Last of all frames where its function takes no nested tensors.
    if by_hook[-1:] == [True] or ("functorch transforms" in message and any(by_hook)):
        return True
    if "is not supported on ScriptModules" in message:  # global ones
        return "_get_backward" in message
    if "Can't detach views in-place" in message:  # the message names no view: the hook's, or the model's own
        return any(isinstance(value, BackwardHook) for values in seen for value in values.values())
    # A view of the hook's result (`Output 0 of Slice`) is not named after the hook, but can't be changed either.
    made_by_it = "BackwardHookFunction" in message or "created inside a custom Function" in message
    return made_by_it and "inplace" in message
