"""Communication hooks by name: PyTorch's own, combinations of them, and user-defined functions.

https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    powerSGD_hook,
    quantization_hooks,
)
from torch.futures import Future

from hookcli.errors import UsageError, unknown
from hookcli.hooks.option_values import COMM_HOOKS, COMM_WRAPPERS
from hookcli.hooks.torch_private.distributed import GradBucket
from hookcli.system.importing import load_object

Hook = Callable[[Any, Any], Future[Tensor]]

_HOOKS: tuple[Hook, ...] = (
    default_hooks.allreduce_hook,
    default_hooks.fp16_compress_hook,
    default_hooks.bf16_compress_hook,
    powerSGD_hook.powerSGD_hook,
    powerSGD_hook.batched_powerSGD_hook,
    quantization_hooks.quantization_pertensor_hook,
    quantization_hooks.quantization_perchannel_hook,
    debugging_hooks.noop_hook,
)
_FUNCTIONS = dict(zip(COMM_HOOKS, _HOOKS, strict=True))
_WRAPPERS: dict[str, Callable[[Hook], Hook]] = dict(
    zip(COMM_WRAPPERS, (default_hooks.fp16_compress_wrapper, default_hooks.bf16_compress_wrapper), strict=True)
)
_SGD = ("powersgd", "batched-powersgd")
_CHAINED = (*_SGD, "quantize-per-tensor", "quantize-per-channel")
_FRAGILE = {
    "batched-powersgd": "use powersgd",
    "quantize-per-tensor": "it works since torch 2.15",
    "quantize-per-channel": "it works since torch 2.15",
}
CALLBACK_FAILED = re.compile(r"(RuntimeError: )?Got the following error when running the callback: ")
_FIRST_COMPRESSED = 2  # DDP rebuilds its buckets after the first step; PowerSGDState refuses less


@dataclass(frozen=True)
class CommHook:
    """A communication hook. `make_state` makes its state, for each model that it is registered on.

    `chained`: its callbacks wait for further collectives. That hangs on gloo with more than one bucket: gloo's threads,
    one per collective under way, wait for each other, and ranks issue collectives in different orders.
    `exact`: it returns the exact mean, as DDP without a hook does.
    `remark`: a note for the user.
    """

    name: str
    function: Hook
    make_state: Callable[[], Any] = lambda: None
    chained: bool = False
    exact: bool = False
    remark: str = ""


def find_hook(spec: str, rank_approximation: int = 1, warm_up: int = _FIRST_COMPRESSED) -> CommHook:
    """Find a hook: one of COMM_HOOKS, `fp16+NAME` or `bf16+NAME`, `pkg.mod:fn` or `file.py:fn`.

    A user-defined hook gets None as its state. Raises UsageError for an unknown name, and for a function that PyTorch
    would reject.
    """
    prefix, plus, rest = spec.partition("+")
    if plus and prefix in _WRAPPERS:
        inner = find_hook(rest, rank_approximation, warm_up)
        return replace(inner, name=f"{prefix}+{inner.name}", function=_WRAPPERS[prefix](inner.function), exact=False)
    if ":" in spec:
        return _user_defined(spec)
    if spec not in _FUNCTIONS:
        other = " (combined: fp16+powersgd; your own: pkg.mod:fn or path/to/file.py:fn)"
        raise UsageError(unknown("--hook", spec, COMM_HOOKS) + other)
    hook = CommHook(spec, _FUNCTIONS[spec], chained=spec in _CHAINED, exact=spec == "allreduce")
    if spec not in _SGD:
        return hook
    if warm_up < _FIRST_COMPRESSED:
        raise UsageError(
            f"--warm-up {warm_up}: PowerSGD starts after {_FIRST_COMPRESSED} steps at the earliest, since DDP rebuilds "
            "its buckets after the first"
        )
    state = partial(powerSGD_hook.PowerSGDState, None, rank_approximation, start_powerSGD_iter=warm_up)
    return replace(hook, make_state=state)


def check_works(hook: CommHook) -> None:
    """Try a hook of PyTorch's that is broken in some versions, on a few numbers and on all ranks together.

    Torch 2.15's batched PowerSGD passes a matrix to a helper that takes batches of matrices; the quantizing hooks of
    2.14 and before index a tensor where they expect a list. Raises UsageError if the hook fails here.
    """
    name = hook.name.rpartition("+")[2]
    if name not in _FRAGILE:
        return
    state = hook.make_state()
    if state is not None:
        state.iter = state.start_powerSGD_iter
    failed = None
    try:
        _FUNCTIONS[name](state, _Trial()).wait()
    except (AssertionError, IndexError, RuntimeError) as error:
        failed = error
    dist.barrier()  # now its callbacks are over: a group that is destroyed under their threads ends the process
    if failed:
        kind = re.match(r"\w+Error(?=: )", CALLBACK_FAILED.sub("", str(failed)))  # raised in a future's callback
        raise UsageError(
            f"--hook {hook.name}: broken in torch {torch.__version__}, whose {_FUNCTIONS[name].__name__} fails on any "
            f"gradients ({kind[0] if kind else type(failed).__name__}); {_FRAGILE[name]}"
        ) from failed


class _Trial:
    """The part of a GradBucket that these hooks use; Python code can't make a real one."""

    def buffer(self) -> Tensor:
        return torch.arange(16.0, device="cpu" if dist.get_backend() == "gloo" else "cuda")

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:  # PowerSGD's state asks
        return True


def _user_defined(spec: str) -> CommHook:
    """A user's hook. Raises UsageError for one that `DistributedDataParallel.register_comm_hook` would not take."""
    target = load_object(spec)
    if not callable(target) or isinstance(target, type):
        what = "is a class" if isinstance(target, type) else f"is of type {type(target).__name__}"
        raise UsageError(f"--hook {spec}: {what}; give a function (state, bucket) -> Future")
    signature = inspect.signature(target)
    named = list(signature.parameters)
    try:
        signature.bind(None, None)
        takes_two = True
    except TypeError:
        takes_two = False
    if named[1:2] != ["bucket"] or not takes_two:
        raise UsageError(
            f"--hook {spec}: takes ({', '.join(named)}); a communication hook takes (state, bucket), and PyTorch "
            "requires the second to be named bucket"
        )
    takes, returns = signature.parameters["bucket"].annotation, signature.return_annotation
    for annotation, right, of in (
        (takes, GradBucket, "bucket: torch.distributed.GradBucket"),
        (returns, Future[Tensor], "-> torch.futures.Future[torch.Tensor]"),
    ):
        if isinstance(annotation, str):
            raise UsageError(
                f"--hook {spec}: PyTorch rejects annotations that are strings ({annotation!r}): remove "
                "`from __future__ import annotations`, or the annotations"
            )
        if annotation not in (inspect.Parameter.empty, right):
            name = getattr(annotation, "__qualname__", annotation)
            raise UsageError(f"--hook {spec}: is annotated with {name}; PyTorch accepts `{of}`, or no annotation")
    wants = "register_comm_hook takes functions only, so in training wrap it in one"
    is_function = hasattr(target, "__name__") and hasattr(target, "__qualname__")
    remark = "" if is_function else f"{spec} is a {type(target).__name__}: {wants}"
    return CommHook(spec.rpartition("/")[2], target, remark=remark)
