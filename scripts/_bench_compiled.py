"""The section of `scripts/bench` for models under torch.compile, with inductor: what it costs to look inside them."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from _bench_measure import apart, compare, installed, timed
from _bench_table import COMPILED_BATCH, COMPILED_OF, LLAMA, compiled_title

_TARGETS = {"looks off": 1.05, "looks on": 1.25}


def compiled(rounds: int) -> None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no processes that compile beside what is measured
    for name, backward in COMPILED_OF:
        if name == LLAMA and not installed("transformers"):
            continue
        apart(partial(_compiled, name, backward, rounds))


def _compiled(name: str, backward: bool, rounds: int) -> None:
    from _bench_work import keep_freed_memory

    keep_freed_memory()
    twins = Twins(name, backward)
    twins.looks_on()  # so that "looks off" is what a session leaves behind
    ways = {"compiled plain": twins.plain, "looks off": twins.looks_off, "looks on": twins.looks_on}
    compare(
        compiled_title(name, backward),
        rounds,
        {way: partial(timed, run, twins.clear) for way, run in ways.items()},
        _TARGETS,
    )


class Twins:
    """A compiled model that hookcli never sees, and another, equal one, which it looks at.

    Dynamo stores programs with the code object of `forward`; the plain model has a copy of it, so they share none.
    """

    def __init__(self, name: str, backward: bool) -> None:
        import torch

        model, self._x = _built(name, backward)
        plain = copy.deepcopy(model)
        plain.forward = MethodType(_copied(type(plain).forward), plain)
        self._models = model, plain
        self._looked, self._plain = torch.compile(model), torch.compile(plain)
        self._backward = backward

    def plain(self) -> None:
        """Run the model that hookcli never sees."""
        self._run(self._plain, self._x)

    def looks_off(self) -> None:
        """Run the other as its owner does."""
        self._run(self._looked, self._x)

    def looks_on(self) -> int:
        """Run it as `hookcli activations`, or `grads --of outputs`, does; how many rows that gives."""
        from _bench_work import probed

        from hookcli.hooks.torch_private.programs import as_written, own_programs

        model, wrapped = as_written(self._looked)
        probe, settings = ("grads", {"of": "outputs"}) if self._backward else ("activations", {})
        with wrapped, own_programs(model):
            return probed(probe, self._run, model, self._x, inside_compiled=True, **settings)

    def clear(self) -> None:
        """Forget the gradients."""
        for model in self._models:
            model.zero_grad(set_to_none=True)

    def _run(self, model: Callable[..., Any], x: Any) -> None:
        import _bench_work as work

        if self._backward:
            model(x, labels=x).loss.backward()
        else:
            work.forward(model, x)


def _built(name: str, train: bool) -> tuple[Any, Any]:
    from _bench_work import build

    if name != LLAMA:
        return build(name, train, COMPILED_BATCH)
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8, "num_hidden_layers": 4}
    config = LlamaConfig(vocab_size=8000, use_cache=False, **sizes)
    return LlamaForCausalLM(config).train(train), torch.randint(8000, (COMPILED_BATCH, 128))


def _copied(function: Any) -> FunctionType:
    """The same function over a copy of its code."""
    code, closure = function.__code__.replace(), function.__closure__
    copied = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied
