"""The bytes in a cache of Transformers, layer by layer: read, and for other batches and lengths, replayed.

Models run once, on a few tokens. A cache of any size then comes from the cache's own code, which gets empty tensors of
the meta device with the heads and dimensions of that run: so a sliding window cuts what it cuts in `generate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_STATES = ("conv_states", "recurrent_states")
_PER_TOKEN = ("keys", "values", "indexer_keys")


@dataclass(frozen=True, slots=True)
class LayerCache:
    """A layer's part of a cache; `tokens`, heads and dimensions are None where it keeps no keys and values.

    `kind`: full, window, latent (MLA), state, full + state, cross (an encoder's), or none (no attention, or
    it shares another's).
    """

    number: int
    kind: str
    window: int | None
    kv_heads: int | None
    key_dim: int | None
    value_dim: int | None
    tokens: int | None
    dtype: str | None
    nbytes: int


class CachePart:
    """A cache that a model has filled with one sequence of `seen` tokens.

    `make` makes an empty cache like it; `ranks` are the sizes of latents (MLA) by layer; `dtype` is
    the dtype of keys and values, None for the model's; `kind` names what all its layers keep, "" for each layer's own
    kind.
    """

    def __init__(
        self,
        filled: Any,
        make: Callable[[], Any],
        seen: int,
        *,
        ranks: Mapping[int, int],
        dtype: torch.dtype | None = None,
        kind: str = "",
    ) -> None:
        self._filled, self._make, self._seen = filled, make, seen
        self._ranks, self._dtype, self._kind = ranks, dtype, kind

    def held(self, batch: int, lengths: Sequence[int]) -> list[LayerCache]:
        """The layers after passes over so many tokens each; of an encoder, whose length may be fixed, after the first.

        A fixed length is one that differs from the number of tokens seen.
        """
        fresh = self._make()
        for number, layer in enumerate(self._filled.layers):
            if _tensor(layer, "keys") is None:
                continue
            further = layer.get_seq_length() - self._seen  # tokens that the model adds by itself
            is_fixed = self._kind and further
            for nth, length in enumerate([layer.get_seq_length()] if is_fixed else lengths):
                added = length + (further if not (nth or self._kind) else 0)
                fresh.update(*(self._empty(layer, name, added) for name in _PER_TOKEN[:2]), number)
                if _tensor(layer, "indexer_keys") is not None:
                    fresh.update_indexer(self._empty(layer, "indexer_keys", added), number)
        made = [*fresh.layers]
        return [
            self._layer(number, layer, made[number] if number < len(made) else None, batch)
            for number, layer in enumerate(self._filled.layers)
        ]

    def uncounted(self) -> Mapping[int, str]:
        """The layers with tensors of unknown kinds, and the names of these."""
        unknown: dict[int, str] = {}
        for number, layer in enumerate(self._filled.layers):
            for name, value in vars(layer).items():
                if name not in (*_STATES, *_PER_TOKEN) and any(x.dim() for x in _tensors(value)):
                    unknown[number] = f"{type(layer).__name__}.{name}"
        return unknown

    def _empty(self, layer: Any, name: str, length: int) -> Tensor:
        """Keys, values or the like of so many tokens of one sequence, without values.

        A whole batch's may have more bytes than PyTorch can count.
        """
        like = getattr(layer, name)
        shape = (1, *like.shape[1:-2], length, like.shape[-1])
        return torch.empty(shape, dtype=self._dtype or like.dtype, device="meta")

    def _layer(self, number: int, filled: Any, fresh: Any, batch: int) -> LayerCache:
        states = [x for name in _STATES for x in _tensors(getattr(filled, name, None))]
        held = batch * sum(x.nbytes for x in states)
        keys, values = (_tensor(fresh, name) for name in _PER_TOKEN[:2])
        if keys is None or values is None:
            dtype = _word(states[0].dtype) if states else None
            return LayerCache(number, "state" if states else "none", None, None, None, None, None, dtype, held)
        held += batch * stored_bytes(fresh)
        heads, dims = keys.shape[1], (keys.shape[-1], values.shape[-1])
        tokens = keys.untyped_storage().nbytes() // (heads * dims[0] * keys.itemsize)
        window = fresh.sliding_window if getattr(fresh, "is_sliding", False) else None
        is_latent = heads == 1 and self._ranks.get(number) in dims
        kind = self._kind or ("window" if window else "latent" if is_latent else "full")
        kind += " + state" if states else ""
        return LayerCache(number, kind, window, heads, *dims, tokens, _word(keys.dtype), held)


def holds_tensors(layer: Any) -> bool:
    """True if a layer of a cache has been filled."""
    return any(x.dim() for value in vars(layer).values() for x in _tensors(value))


def stored_bytes(layer: Any) -> int:
    """The bytes of the storages of keys, values and the like: a window's tensors may be views of more."""
    tensors = (_tensor(layer, name) for name in _PER_TOKEN)
    return sum(x.untyped_storage().nbytes() for x in tensors if x is not None)


def _word(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _tensor(layer: Any, name: str) -> Tensor | None:
    """A tensor of a layer; None if it has none of this name, or has not filled it."""
    value = getattr(layer, name, None)
    return value if isinstance(value, Tensor) and value.dim() > 1 else None


def _tensors(value: object) -> Iterator[Tensor]:
    """A tensor, or all tensors of a mapping or a list."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)
