"""Finds the calls of attention among the functions that a model calls, and the heads in their tensors.

Attention is a call of a fused function, or a softmax over the last of three or more dimensions whose weights then meet
values in a product, in the same module or one around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.shared.module_facts import HEAD_COUNTS
from hookcli.table.formatting import listed
from hookcli.table.names import around, in_words
from hookcli.tensors import tree

FUSED, FLEX, SOFTMAX = "scaled_dot_product_attention", "flex_attention", "softmax"
FUNCTIONS = (FUSED, FLEX, SOFTMAX, "matmul", "bmm", "einsum")
"""The names of the functions whose calls `AttentionCalls.of` is to see, in their order."""
_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")

ByHeads = Callable[[Tensor], Tensor]
"""Gives a tensor the dimensions batch, heads, queries or keys, and size."""


@dataclass
class Softmax:
    """A softmax in the module `fqn` that attention may begin with. `figures`: whatever its finder makes of it."""

    fqn: str
    shape: torch.Size
    by_heads: ByHeads
    figures: Any = field(default=None, compare=False)


@dataclass(frozen=True)
class AttentionCall:
    """A call of attention that has ended with a function's `event`. It holds live tensors, and dies with the callback.

    `output` is what the heads return, and `by_heads` fits it. `arguments`: those of a fused function, by name;
    `by_heads` fits their tensors, too. `softmax`: the one that began attention by hand.
    """

    event: HookEvent
    output: Tensor
    by_heads: ByHeads
    arguments: Mapping[str, Any] = field(default_factory=dict)
    softmax: Softmax | None = None


class AttentionCalls:
    """Finds attention in the calls of FUNCTIONS.

    `heads`: the number for modules that don't say theirs; 0 for none. `joined`: modules where one dimension may
    hold both batch and heads, and the number was not found, so that all are taken for one head.
    """

    def __init__(self, session: HookSession, heads: int = 0) -> None:
        self._session, self._number = session, heads
        self.joined: dict[str, None] = {}
        self.across: dict[str, str] = {}
        """Modules with a softmax over another dimension than the last of a square matrix, and which, in words."""
        self._asked_number = False
        self._softmaxes: list[Softmax] = []
        """The last two: attention's if a product of their weights follows in the module, or in one around it."""
        self._doubted = False  # another product followed: of further logits, or keys meet values first, as if linear

    def of(self, event: HookEvent) -> AttentionCall | Softmax | None:
        """The attention that ends with this call of a function, or the softmax with which it may begin.

        Raises an error such as ValueError or TypeError where it can't be followed.
        """
        assert event.operator
        name = event.operator.name
        if name == SOFTMAX:
            return self._begin(event)
        if name == FUSED:
            arguments = dict(zip(_PARAMETERS, event.args, strict=False)) | dict(event.kwargs)
            query: Tensor = arguments["query"]
            require_plain(query, arguments["key"])
            lead = query.shape[:-2]
            heads = 0 if query.dim() == 4 else self._heads(event, lead)
            by_heads = partial(split_heads, lead=lead, heads=heads)
            self._note_joined(event, lead, heads)
            return AttentionCall(event, event.output, by_heads, arguments)
        if name == FLEX:
            return AttentionCall(event, event.output[0], partial(split_heads, lead=event.output[0].shape[:-2], heads=0))
        return self._product(event)

    def _begin(self, event: HookEvent) -> Softmax | None:
        arguments = dict(zip(("input", "dim"), event.args, strict=False)) | dict(event.kwargs)
        logits: Tensor = arguments["input"]
        if logits.dim() < 3 or arguments.get("dim") not in (-1, logits.dim() - 1):
            if logits.dim() >= 3 and logits.shape[-2] == logits.shape[-1]:
                self.across[event.fqn] = f"dimension {arguments.get('dim')} of {tree.shape_text(logits)}"
            return None
        require_plain(logits)
        if event.output is logits:
            raise ValueError("its softmax overwrites the logits")
        lead = logits.shape[:-2]
        begun = Softmax(event.fqn, logits.shape, partial(split_heads, lead=lead, heads=self._heads(event, lead)))
        self._softmaxes, self._doubted = [*self._softmaxes[-1:], begun], False
        return begun

    def _product(self, event: HookEvent) -> AttentionCall | None:
        """A product of a softmax's weights, perhaps less the weight of a sink, with values."""
        operands = tree.received(event.args, event.kwargs)
        inside = [one for one in self._softmaxes if event.fqn in (one.fqn, *around(one.fqn))]
        if not inside or len(operands) < 2 or min(x.dim() for x in operands) < 3:
            return None
        equation = next(iter(event.args), None)
        letters = equation if isinstance(equation, str) else ""
        pairs = (
            (one, at) for one in inside for at, x in enumerate(operands) if can_be_weights(x, at, one.shape, letters)
        )
        pair = next(pairs, None)
        if pair is None or self._doubted:
            self._doubted = True
            return None
        softmax, at = pair
        self._softmaxes.remove(softmax)
        lead = softmax.shape[:-2]
        heads = self._heads(event, lead)

        def by_heads(x: Tensor) -> Tensor:
            if letters:
                x = in_order(x, letters, at)
            elif x.shape[:-2].numel() == lead.numel():  # batch and heads may have been joined meanwhile
                x = x.reshape(*lead, *x.shape[-2:])
            return split_heads(x, lead, heads)

        self._note_joined(event, lead, heads)
        return AttentionCall(event, event.output, by_heads, softmax=softmax)

    def _note_joined(self, event: HookEvent, lead: Sequence[int], heads: int) -> None:
        if len(lead) == 1 and lead[0] > 1 and not heads:
            self.joined[event.fqn] = None

    def notes(self) -> Iterator[str]:
        """What to know of the number of heads: that it was not found, or that the one given changed nothing."""
        if self.joined:
            names = listed([in_words(fqn) for fqn in self.joined], 2)
            yield f"number of heads not found in {names}: taken for one head; --heads N tells them apart"
        if self._number and not self._asked_number:
            yield f"--heads {self._number} changed nothing: the heads were found without it"

    def _heads(self, event: HookEvent, lead: Sequence[int]) -> int:
        """The number of heads that the module says, or for a layer of softmax the one around it; 0 for none.

        Where batch and heads may be one dimension, also the number in its configuration or in a module around it, if it
        divides the dimension, and last the number given. Raises ValueError if that does not divide it.
        """
        model, path = self._session.model, [*around(event.fqn)]
        owner = model.get_submodule(path[0]) if isinstance(event.module, nn.Softmax) else event.module
        if heads := named_heads(owner):
            return heads
        if len(lead) != 1 or lead[0] == 1:
            self._asked_number = True
            return self._number
        for owner in (event.module, *map(model.get_submodule, path)):
            heads = named_heads(owner) or named_heads(getattr(owner, "config", None))
            if heads and lead[0] % heads == 0:
                return heads
        self._asked_number = True
        if self._number and lead[0] % self._number:
            raise ValueError(f"{lead[0]} matrices of weights are not a multiple of {self._number} heads")
        return self._number


def named_heads(owner: object) -> int:
    """The number of heads that a module or a configuration names; 0 if it names none."""
    named = (getattr(owner, name, None) for name in HEAD_COUNTS)
    return next((n for n in named if type(n) is int and n > 0), 0)


def require_plain(*tensors: Tensor | None) -> None:
    """Raises TypeError for tensors that compute in their own way."""
    for x in tensors:
        if x is not None and not (tree.is_plain(x) and (x.is_floating_point() or x.dtype is torch.bool)):
            raise TypeError(f"a tensor of a kind that is not looked into, {type(x).__name__} of {tree.dtype_text(x)}")


def can_be_weights(x: Tensor, at: int, shape: torch.Size, equation: str) -> bool:
    """True if this factor can be a softmax's weights of that shape: the first, the second transposed, any of an einsum.

    In an einsum the other factor lacks the letter of queries: the weights of a gate have none.
    """
    queries, keys = shape[-2:]
    sizes = [(queries, keys), (queries, keys - 1)]  # without a learned sink
    if equation:
        letters = equation.replace(" ", "").partition("->")[0].split(",")
        gate = set(letters.pop(at).strip(".")[:-1]) <= set(letters[0])
    else:
        sizes, gate = sizes if at == 0 else [(keys, queries)], False
    return tuple(x.shape[-2:]) in sizes and x.shape[:-2].numel() == shape[:-2].numel() and not gate


def in_order(output: Tensor, equation: str, weights: int) -> Tensor:
    """The output of einsum, with its dimensions in the order of its operand `weights`, and the values' size last."""
    inputs, _, made = equation.replace(" ", "").replace("...", "").partition("->")
    operands = inputs.split(",")
    lead = operands.pop(weights)[:-1]
    if not set(lead) <= set(made) or lead[-1:] in operands[0]:
        raise ValueError(f"einsum {equation}: queries are not last but one, or heads are summed over")
    further = output.dim() - len(made)
    order = [*lead, *(each for each in made if each not in lead)]
    return output.permute(*range(further), *(further + made.index(each) for each in order))


def split_heads(x: Tensor, lead: Sequence[int], heads: int) -> Tensor:
    """The tensor with the dimensions batch, heads, queries or keys, and size.

    `lead`: the sizes of the query's dimensions before the last two. `heads`: the number its module says, or 0; they
    are the last of these dimensions, unless another has that size, the last two together, or part of the only one.
    """
    x = x[(None,) * (len(lead) + 2 - x.dim())]
    if len(lead) == 1 and x.shape[0] > 1:
        x = x.unflatten(0, (-1, heads if heads and lead[0] % heads == 0 else 1))
    elif heads and len(lead) > 1 and (lead[-1] % heads or (len(lead) > 2 and lead[-1] != heads)):
        if heads in lead:
            x = x.movedim([*lead].index(heads), -3)
        elif lead[-1] * lead[-2] == heads:
            x = x.flatten(-4, -3)
    return x[(None,) * (4 - x.dim())].flatten(0, -4)
