"""The functions of PyTorch in which given tensors meet values that the model computes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from hookcli.hooks.observing_mode import ObservingMode
from hookcli.hooks.operators.functions import function_names, given_tensors, reads_attribute
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import CONSTANT, TensorOrigins
from hookcli.hooks.torch_private.exchange import Function
from hookcli.tensors import tree
from hookcli.tensors.tree import Args, Kwargs

_AS_WEIGHT = {
    *("linear", "bilinear", "matmul", "mm", "bmm", "mv", "dot", "inner", "addmm", "addmv", "addbmm", "baddbmm"),
    *("einsum", "tensordot", "mul", "multiply", "embedding", "scaled_dot_product_attention", "prelu"),
    *("multi_head_attention_forward", "layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"),
    *(f"conv{transposed}{dims}d" for transposed in ("", "_transpose") for dims in (1, 2, 3)),
}
_MOVES = {"to", "cuda", "type_as"}


class TensorUses(ObservingMode):
    """Follows these tensors, and what is made of them alone, through the functions that run under a session.

    `as_weights`: the numbers of the tensors that met other values where a weight does: in products, normalizations and
    embeddings. `moved`: the numbers of those that the program itself moves to another device or dtype.
    """

    def __init__(self, session: HookSession, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self.as_weights: set[int] = set()
        self.moved: set[int] = set()
        self._clock = session.clock
        self._origins = TensorOrigins(())
        self.past_compiled = session.model if session.past_compiled else None
        for number, x in enumerate(tensors):
            self._origins.made(x, number)
        for x in (*session.model.parameters(), *session.model.buffers()):  # last: an alias of a parameter is constant
            if not is_lazy(x):
                self._origins.made(x, CONSTANT)
        session.watch_functions(self)

    def observe(self, func: object, run: Function, args: Args, kwargs: Kwargs) -> object:
        if self._clock.busy or reads_attribute(func):
            return run(*args, **kwargs)
        with torch.DisableTorchFunction():  # neither the program's modes nor its subclasses see what is read here
            origins = [self._origins.of(x) for x in given_tensors(args, kwargs)]
        output = run(*args, **kwargs)
        numbers = [number for number in origins if number is not None and number != CONSTANT]
        name = function_names(func)[0].rstrip("_") if numbers else ""
        if name in _MOVES:
            self.moved.update(numbers)
        elif numbers and None not in origins:
            with torch.DisableTorchFunction():
                for _, x in tree.leaves(output):
                    self._origins.made(x, numbers[0])
        elif name in _AS_WEIGHT:
            self.as_weights.update(numbers)
        return output
