"""Small models, float64 references, and a witness that nothing is left behind."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import graph
from torch.nn.modules import module as torch_module

from hookcli.checks.selection import known_checks
from hookcli.table import STATS_KEYS, TensorStats

HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
HOOK_FLAGS = ("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")

needs_inductor = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="inductor's C++ does not compile for kernels without vectors",
)

exact_only = pytest.mark.skipif(not hasattr(graph, "node_creation_hook"), reason="PyTorch has this hook since 2.14")


class Hides(torch.autograd.Function):
    """A copy, whose gradient passes: to be derived under the names of functions that hide what they compute."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0]


# Sends SIGINT when the process has used so many seconds of a processor, however busy the machine is.
TIMED = """
import atexit, signal, sys, time
from hookcli.__main__ import entry
spent, after = time.process_time(), float(sys.argv.pop(1))
if not after:
    atexit.register(lambda: open("spent", "w").write(str(time.process_time() - spent)))
sys.argv[0] = "hookcli"
signal.signal(signal.SIGPROF, lambda *_: signal.raise_signal(signal.SIGINT))
signal.setitimer(signal.ITIMER_PROF, after)
entry()
"""


def damaged(document: Any) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """A JSON document with one value at a time replaced by what doesn't belong there: where, by what, and it."""
    for place in _places(document, ()):
        for wrong in (None, "abc", [], {}, -1, 2.5, True, [["x"]], [[2], 3], "NaN", 10**400):
            copied = copy.deepcopy(document)
            holder = copied
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = wrong
            yield place, wrong, copied


def _places(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*place, key)
        yield from _places(value[key], (*place, key))


def hooks_on(model: nn.Module) -> dict[str, int]:
    """How many hooks of each kind are on the model, its parameters and globally, and the flags that belong to them."""
    found = {name: sum(len(getattr(m, name)) for m in model.modules()) for name in (*HOOK_TABLES, *HOOK_FLAGS)}
    found["is_full"] = sum(m._is_full_backward_hook is not None for m in model.modules())
    for name, table in vars(torch_module).items():
        if name.startswith("_global_"):
            found[name] = len(table) if hasattr(table, "__len__") else (None, False, True).index(table)
    for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        found[f"parameter{kind}"] = sum(len(getattr(p, kind) or ()) for p in model.parameters())
    return found


@contextmanager
def gradients(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The gradients that the parameters get in the block, as PyTorch's own hooks see them."""
    found: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for fqn, parameter in model.named_parameters():
            if parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook(
                    lambda p, fqn=fqn: found.update({fqn: p.grad.clone()})
                )
                stack.callback(hook.remove)
        yield found


@contextmanager
def untouched(model: nn.Module, *, buffers: bool = True) -> Iterator[None]:
    """Assert that the block leaves no hook, flag, mode, buffer, gradient or random state changed."""

    def state() -> dict[str, Any]:
        return {
            "hooks": hooks_on(model),
            "modes": [m.training for m in model.modules()],
            "requires_grad": [p.requires_grad for p in model.parameters()],
            "grads": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
            "buffers": [b.clone() for b in model.buffers()] if buffers else [],
            "parameters": [p.detach().clone() for p in model.parameters()],
            "rng": torch.get_rng_state(),
            "python": random.getstate(),
            "fastpath": torch.backends.mha.get_fastpath_enabled(),
            "grad mode": torch.is_grad_enabled(),
            "threads": torch.get_num_threads(),
        }

    before = state()
    try:
        yield
    finally:
        after = state()
        for key, value in before.items():
            assert equal(value, after[key]), f"{key} changed"


def equal(a: Any, b: Any) -> bool:
    """Bit for bit, through lists, tuples and mappings."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and bool(same_bits(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def same_bits(a: Tensor, b: Tensor) -> bool:
    if a.is_quantized:
        a, b = a.dequantize(), b.dequantize()
    return bool(((a == b) | (a.isnan() & b.isnan())).all()) if a.is_floating_point() else torch.equal(a, b)


def float64_stats(tensor: Tensor) -> TensorStats:
    """The statistics as PyTorch computes them directly in float64."""
    x = tensor.detach()
    x = (x.to_dense() if x.layout is not torch.strided else x).reshape(-1)
    x = (x.abs() if x.is_complex() else x).double()
    finite = x[torch.isfinite(x)]
    some = finite.numel() > 0
    return TensorStats(
        numel=x.numel(),
        mean=finite.mean().item() if some else math.nan,
        std=finite.std().item() if finite.numel() > 1 else math.nan,
        min=finite.min().item() if some else math.nan,
        max=finite.max().item() if some else math.nan,
        l2=finite.norm().item() if some else math.nan,
        zeros=int((x == 0).sum()),
        nan=int(x.isnan().sum()),
        inf=int(x.isinf().sum()),
    )


def assert_stats(found: TensorStats | None, expected: TensorStats, rel: float = 1e-5) -> None:
    """Equal within `rel`; the mean also within `rel` of the spread, below which float32 data say nothing of it."""
    assert found is not None
    for key in STATS_KEYS:
        a, b = getattr(found, key), getattr(expected, key)
        if math.isnan(b):
            assert math.isnan(a), (key, a, b)
            continue
        slack = rel * abs(b)
        if key == "mean" and not math.isnan(expected.std):
            slack = max(slack, 1e-6 * expected.std)
        assert abs(a - b) <= slack, (key, a, b)


class Hand(nn.Module):
    """Three layers with weights that a person can follow: y = sum(relu(2x - 1)) * 3."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.relu = nn.ReLU()
        self.out = nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(2 * torch.eye(2))
            self.first.bias.fill_(-1)
            self.out.weight.fill_(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.relu(self.first(x)))


class Shared(nn.Module):
    """One linear layer, called three times; and a tied pair of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.mix = nn.Linear(5, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for _ in range(3):
            x = self.mix(x)
        return self.head(x)


class Pair(NamedTuple):
    main: Tensor
    aux: Tensor


@dataclass
class Box:
    hidden: Tensor
    extra: list[Tensor]


class Nested(nn.Module):
    """Returns `what`: "dict", "tuple", "named", "dataclass" or "none"."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.body = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Any:
        y = self.body(x)
        return {
            "dict": OrderedDict(out=y, aux=y + 1),
            "tuple": (y, [y + 1, y + 2]),
            "named": Pair(y, y + 1),
            "dataclass": Box(y, [y + 1]),
            "none": None,
        }[self.what]


class Later:
    """A module that is imported when it is first used: all workers import a test's file, and one runs the test."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest asks all that stands in a test's file for `__test__` and `__bases__`
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


def require_clear_error(ran: Any, said: str) -> None:
    """Fails unless the command line has ended with an error that says so, in at most two lines, and no traceback."""
    lines = ran.err.splitlines()
    assert ran.code == 2 and lines[0].startswith("hookcli: error: ") and said in lines[0], ran.err
    assert len(lines) <= 2 and "Traceback" not in ran.err


def usual_checks() -> int:
    """The number of checks that run without an option that asks for them."""
    return sum(not kind.asked_by for kind in known_checks())


def swept(*values: Any) -> Any:
    """A costly sibling of a case that every `pytest` runs: one for `scripts/sweep tests`."""
    return pytest.param(*values, marks=pytest.mark.sweep)


def each_once(*axes: Iterable[Any]) -> list[Any]:
    """Every combination of a value of each axis: a plain `pytest` has each value once at least, the rest is swept."""
    sets = [[one if hasattr(one, "marks") else pytest.param(one) for one in axis] for axis in axes]
    plain = [[one for one in axis if not one.marks] for axis in sets]
    chosen = {tuple(id(axis[n % len(axis)]) for axis in plain) for n in range(max(map(len, plain)))}
    return [
        (pytest.param if tuple(map(id, combination)) in chosen else swept)(
            *(v for one in combination for v in one.values)
        )
        for combination in itertools.product(*sets)
    ]
