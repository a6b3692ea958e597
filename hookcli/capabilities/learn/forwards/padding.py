"""Masks of attention that hide the tokens of a batch, and show its padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hookcli.hooks.events import HookEvent
from hookcli.tensors import tree

_HIDES = ("key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask")
_SHOWS = "attention_mask"  # of Transformers: 1 for what is attended to
_LONG, _RUN = 8, 4  # tokens of a row; the part of it that padding takes
_MOST, _LEAST = 16, 16  # masks, and embeddings, of a step; places of a batch


@dataclass
class PaddingMasks:
    """The masks that modules got in a step, and where the batch has padding, as embeddings tell."""

    hidden: list[tuple[str, str, Tensor]] = field(default_factory=list)
    """The module, the name of its mask, and the places that are hidden."""
    padding: list[Tensor] = field(default_factory=list)

    def enter(self, event: HookEvent) -> None:
        """Note what a module is about to get. Waits for nothing."""
        if isinstance(event.module, nn.Embedding):
            for tokens in tree.received(event.args, event.kwargs)[:1]:
                if tree.is_plain(tokens) and len(self.padding) < _MOST:
                    self.padding += padding_of(tokens, event.module.padding_idx)
        for name, mask in (event.kwargs or {}).items():
            hidden = hidden_by(mask, name, event.module) if len(self.hidden) < _MOST else None
            if hidden is not None:
                self.hidden.append((event.fqn, name, hidden))

    def inverted(self) -> Iterator[tuple[str, str]]:
        """The modules, and the names of their masks, that hide just what is not padding. Waits for an accelerator."""
        for fqn, name, hidden in self.hidden:
            alike = (one for one in self.padding if one.shape == hidden.shape and one.device == hidden.device)
            if any(is_opposite(hidden, padding) for padding in alike):
                yield fqn, name


def padding_of(tokens: Tensor, index: int | None) -> list[Tensor]:
    """Where tokens are this index; without one, where rows (N, T) end with a long run of the most usual last token.

    Waits for nothing.
    """
    if index is not None:
        return [tokens == index]
    if tokens.dim() != 2 or tokens.shape[1] < _LONG or not len(tokens):
        return []
    with torch.no_grad():
        at_end = (tokens == tokens[:, -1].mode().values).flip(1).cumprod(1).flip(1)
        return [(at_end * (at_end.sum(1, keepdim=True) >= tokens.shape[1] // _RUN)).bool()]


def hidden_by(mask: object, name: str, module: nn.Module | None) -> Tensor | None:
    """The places that a mask hides, which a module gets by this name; None if it is no mask of them.

    Truth values in an `attention_mask` are True for what is attended to in Transformers alone.
    """
    if not isinstance(mask, Tensor) or not tree.is_plain(mask) or mask.dim() != 2:
        return None
    if name in _HIDES:
        return mask.isinf() if mask.is_floating_point() else mask.bool()
    as_numbers = mask.dtype != torch.bool
    in_transformers = any(one.__module__.startswith("transformers.") for one in type(module).__mro__)
    return mask == 0 if name == _SHOWS and (as_numbers or in_transformers) else None


def is_opposite(a: Tensor, b: Tensor) -> bool:
    """True if both values occur, and each place of one tensor has the other value. Waits for an accelerator."""
    with torch.no_grad():
        return a.numel() >= _LEAST and bool((a != b).all() & a.any() & b.any())


def words_on_mask(found: tuple[str, str], name: Callable[[str], str]) -> str:
    """Words on the inverted mask of a module."""
    place = name(found[0]) or "the model"
    return f"the {found[1]} of {place} is inverted: it hides all tokens, and shows the padding"
