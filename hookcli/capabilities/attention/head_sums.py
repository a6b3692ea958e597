"""Figures of attention's heads from blocks of scores: no whole matrix of weights is ever in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookcli.capabilities.attention.heads import STEADY

_HIDDEN = -1e30  # the score of a key that a query may not see: finite, so that its weight times its score is 0
_MASKS = -80.0  # a mask adds this or less to hide a key: -inf, -1e9, -10000, or -100 in Swin
_MASKED = -5e3  # or less is the score of a hidden key, where no other head's score of it can tell
_CPU_BLOCK, _DEVICE_BLOCK = 1 << 19, 1 << 24  # scores in a block: on the CPU they stay in its cache
_LEAST = 8  # queries of a block, where keys are so many that its scores are more
_EVEN = 0.01  # weights that differ less from even ones say nothing of what a head looks for
_FARTHEST = 256  # the largest distance from a query to a key that is counted by itself: more than a row of most images


@dataclass
class Scores:
    """The scores of queries (batch, heads, queries, size) and keys (batch, heads of keys, keys, size), by blocks.

    `mask`: True or 0 where a query may see a key, or what is added to the score; of four dimensions, each of which may
    be 1. `causal`: query i sees keys 0 to i. `score_mod(score, b, h, q, k)` and `mask_mod(b, h, q, k)` as in
    `flex_attention`. `logits`: the scores, with the mask in them. `one_sequence`: queries and keys are of the
    same tokens, so that the query of a key which no query sees is padding.

    `first`: for each item of the batch the first key that any query may see; None if it is the first one. `tokens`: for
    each item True at the queries that are not padding; None if none is known to be.
    """

    query: Tensor
    key: Tensor
    scale: float = 1.0
    mask: Tensor | None = None
    causal: bool = False
    score_mod: Callable[..., Tensor] | None = None
    mask_mod: Callable[..., Tensor] | None = None
    logits: Tensor | None = None
    one_sequence: bool = False

    def __post_init__(self) -> None:
        if self.logits is None:
            batch = max(len(self.query), len(self.key))  # one query for all items, or one key
            self.query, self.key = (x.expand(batch, -1, -1, -1) for x in (self.query, self.key))
        source = self.query if self.logits is None else self.logits
        self.dtype = torch.promote_types(source.dtype, torch.float32)
        self.device, keys = source.device, self.key.shape[-2] if self.logits is None else source.shape[-1]
        self.shape = (*source.shape[:3], keys)
        self.first: Tensor | None = None
        self.tokens: Tensor | None = None
        if 0 not in self.shape:
            self.find_padding()

    def find_padding(self) -> None:
        """Set `first` and `tokens`, by the keys that no query may see."""
        queries, keys = self.shape[2:]
        further = keys - queries
        same_tokens = self.one_sequence and further in ((0,) if self.logits is None else (0, 1))  # 1: a learned sink
        if self.mask_mod is not None and not same_tokens:
            return
        seen, tokens = self.keys_in_sight()
        if seen is None or tokens is None:
            return
        on_cpu = self.device.type == "cpu"  # where looking at a value waits for nothing
        if not (on_cpu and seen[:, 0].all()):
            self.first = seen.int().argmax(-1)
        if same_tokens and not (on_cpu and seen.all()):
            self.tokens = tokens[:, :queries]

    def keys_in_sight(self) -> tuple[Tensor | None, Tensor | None]:
        """For each item True at keys that any query may see, and at those that are not padding; None without a mask."""
        if self.mask_mod is not None:
            seen = self.seen_by_any_query()
            return seen, seen
        hides = self.mask if self.logits is None else self.logits
        if hides is None:
            return None, None
        most = hides.amax((1, 2)).expand(self.shape[0], self.shape[3])
        return _sees(most), _sees(most) if self.logits is None else ~(most <= _MASKED)  # other low logits are of tokens

    def seen_by_any_query(self) -> Tensor:
        """For each item True at the keys that `mask_mod` lets any query of any head see."""
        assert self.mask_mod
        batch, heads, queries, keys = self.shape
        rows = max(1, _CPU_BLOCK // (heads * keys))
        seen = torch.zeros(batch, keys, dtype=torch.bool, device=self.device)
        for item in range(batch):
            for begin in range(0, queries, rows):
                shape = (1, heads, min(rows, queries - begin), keys)
                seen[item] |= self.mask_mod(*self._places(item, begin, shape)).expand(shape).any((0, 1, 2))
        return seen

    def _places(self, item: int, begin: int, shape: Sequence[int]) -> list[Tensor]:
        """The numbers of the item, head, query and key for scores of this shape, each along its dimension."""
        starts = enumerate(zip((item, 0, begin, 0), shape, strict=True))
        return [torch.arange(n, n + size, device=self.device).view(-1, *(1,) * (3 - i)) for i, (n, size) in starts]

    def block(self, items: slice, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """The scores of these queries, which may be overwritten, and how many keys each query may see."""
        if self.logits is not None:
            scores = self.logits[items, :, begin:end].to(self.dtype).clamp(min=_HIDDEN)
            limit = _MASKS if scores.shape[1] > 1 else _MASKED
            return scores, (~(scores.amax(1, keepdim=True) <= limit)).sum(-1)  # NaN is not hidden
        width = min(end, self.shape[3]) if self.causal else self.shape[3]
        query = self.query[items, :, begin:end].to(self.dtype) * self.scale
        key = self.key[items, :, :width].to(self.dtype)
        grouped = query.reshape(len(key), key.shape[1], -1, key.shape[-1])  # several heads may share one of keys
        scores = (grouped @ key.transpose(-1, -2)).view(*query.shape[:3], width)
        if self.score_mod and self.mask_mod:
            at = self._places(items.start, begin, scores.shape)
            scores = self.score_mod(scores, *at).to(self.dtype).expand(scores.shape)
            sees = (scores > _HIDDEN) & self.mask_mod(*at)
            return scores.masked_fill(~sees, _HIDDEN), sees.sum(-1)
        seen = torch.full((1, 1, 1), width, device=self.device)
        if self.causal:
            places = torch.arange(begin, end, device=self.device)
            scores[..., begin:].masked_fill_(places[: max(0, width - begin)] > places[:, None], _HIDDEN)
            seen = (places + 1).clamp(max=width)[None, None]
        if self.mask is not None:
            mask = self.mask[items] if len(self.mask) > 1 else self.mask
            mask = (mask[:, :, begin:end] if mask.shape[2] > 1 else mask).expand(-1, -1, -1, width)
            seen = _sees(mask).sum(-1)
            bias = mask if mask.dtype is not torch.bool else mask.new_zeros((), dtype=self.dtype).where(mask, _HIDDEN)
            scores.add_(bias).clamp_(min=_HIDDEN)
        return scores, seen


def _sees(mask: Tensor) -> Tensor:
    return mask if mask.dtype is torch.bool else ~(mask <= _MASKS)  # NaN hides nothing


class HeadSums:
    """Sums over queries, to which further calls and batches add theirs. They stay on the device.

    `sums`: queries, entropy, its share of the most, weight on the first key, squares of what the head returns, their
    number, weight on the own key, and distance. `most`: the largest logit and weight. `offsets`: the number of queries
    whose largest weight is so many places before or after them, for each such number up to _FARTHEST. `keys`: the
    weight on each key, counted from the first that is not padding. `padding`: the number of queries that are left
    out, of `everything`.
    """

    def __init__(self, heads: int, device: torch.device) -> None:
        self.heads, self.square = heads, True
        self.sums = torch.zeros(8, heads, dtype=torch.float64, device=device)
        self.most = torch.full_like(self.sums[:2], -math.inf)
        self.products, self.uniform = self.sums.new_zeros(2, heads, heads)
        self.offsets = self.sums.new_zeros(heads, 2 * _FARTHEST + 3)  # the first and the last: all that are farther
        self.keys = self.sums.new_zeros(heads, 1)
        self.padding, self.everything = self.sums.new_zeros(()), 0
        self._tokens: Tensor | None = None

    @classmethod
    def of(cls, scores: Scores) -> HeadSums:
        """The sums over all queries, but for padding, that may see two keys or more: the others have no choice."""
        batch, heads, queries, keys = scores.shape
        self = cls(heads, scores.device)
        self.square, self._tokens = queries == keys, scores.tokens
        self.keys, self.everything = self.sums.new_zeros(heads, max(keys, 1)), batch * queries
        if self._tokens is not None:
            self.padding += (~self._tokens).sum()
        if 0 in scores.shape:
            return self
        block = _CPU_BLOCK if scores.device.type == "cpu" else _DEVICE_BLOCK
        rows = min(queries, max(_LEAST, block // (heads * keys)))
        items = max(1, block // (heads * queries * keys)) if rows == queries else 1
        for item in range(0, batch, items):
            for begin in range(0, queries, rows):
                self._add(scores, slice(item, item + items), begin, min(begin + rows, queries))
        return self

    def add_output(self, output: Tensor) -> HeadSums:
        """Add the output of the heads: batch, heads, queries, size."""
        if not self.heads:
            return self
        norms = torch.linalg.vector_norm(
            output, dim=-1, dtype=torch.promote_types(output.dtype, torch.float32)
        ).double()
        if self._tokens is not None:
            tokens = self._tokens[:, None].expand_as(norms)
            norms = torch.where(tokens, norms, 0)
            self.sums[5] += tokens.sum((0, 2)) * output.shape[-1]
        else:
            self.sums[5] += output.numel() // len(self.most[0])
        self.sums[4] += norms.square().sum((0, 2))
        return self

    def merge(self, other: HeadSums) -> bool:
        """Add the sums of further queries; False if they are of another number of heads, and were left out."""
        if other.heads == self.heads:
            self.sums += other.sums
            self.products += other.products
            self.uniform += other.uniform
            self.offsets += other.offsets
            short, long = sorted((self.keys, other.keys), key=torch.numel)
            self.keys = long.clone()
            self.keys[:, : short.shape[1]] += short
            self.padding += other.padding
            self.everything += other.everything
            self.most = torch.maximum(self.most, other.most)
            self.square &= other.square
        return other.heads == self.heads

    def figures(self) -> list[dict[str, Any]]:
        """The figures of each head. This waits for the device."""
        queries, *means = self.sums
        entropy, of_most, first, squares, number, own, distance = (total / queries.clamp(min=1) for total in means)
        output = (squares / number).sqrt()
        share = output / output[output.isfinite()].mean().clamp(min=torch.finfo(output.dtype).tiny)
        centred = self.products - self.uniform
        differs = centred.diagonal() > _EVEN**2 * self.uniform.diagonal()
        # The cosine of a head's weights and another's, both less even ones; a head that is even itself has none.
        cosine = centred * (centred.diagonal()[:, None] * centred.diagonal()).rsqrt()
        cosine[~(differs & differs[:, None])] = -math.inf
        cosine.fill_diagonal_(-math.inf)
        alike, nearest = cosine.max(1)
        alike = torch.where(alike.isinf(), math.nan, alike.clamp(-1, 1))
        at_offset, offset = self.offsets[:, 1:-1].max(1)
        on_key, top_key = self.keys.max(1)
        named = {"entropy": entropy, "entropy_share": of_most, "first_share": first, "similarity": alike}
        named |= {"max_logit": self.most[0], "max_weight": self.most[1], "output_rms": output, "output_share": share}
        named |= {"self_share": own, "distance": distance} if self.square else {}
        named |= {"offset_share": at_offset / queries.clamp(min=1), "top_key_share": on_key / queries.clamp(min=1)}
        counts = {"queries": queries, "padding": self.padding.expand_as(queries), "nearest": nearest}
        counts |= {"top_key": top_key, "offset": offset - _FARTHEST}
        rows = torch.stack([*named.values(), *counts.values()]).T.tolist()
        return [
            as_row(
                dict(zip(named, row, strict=False)), dict(zip(counts, map(int, row[len(named) :]), strict=True)), self
            )
            for row in rows
        ]

    def _add(self, scores: Scores, items: slice, begin: int, end: int) -> None:
        logits, seen = scores.block(items, begin, end)
        valid = seen >= 2
        if scores.tokens is not None:
            valid = valid & scores.tokens[items, None, begin:end]
        top = logits.amax(-1, keepdim=True)
        logits -= top
        weights = torch.exp(logits)
        total = weights.sum(-1)
        entropy = total.log() - logits.mul_(weights).sum(-1) / total
        weights *= torch.where(valid, 1 / total, 0)[..., None]
        share = entropy / seen.clamp(min=2).log()
        first = weights[..., 0]
        if scores.first is not None:
            first = weights.gather(-1, scores.first[items].view(-1, 1, 1, 1).expand(*weights.shape[:3], 1))[..., 0]
        figures = [valid.expand_as(total), *(torch.where(valid, x, 0) for x in (entropy, share)), first]
        self.sums[:4] += torch.stack([x.to(weights.dtype).sum((0, 2)) for x in figures])
        if self.square:
            self.sums[6:] += torch.stack([x.sum((0, 2)) for x in _distances(weights, begin, end)])
        on_keys = weights.sum(2).double()  # items, heads, keys
        if scores.first is None:
            self.keys[:, : on_keys.shape[2]] += on_keys.sum(0)
        else:  # keys are counted from each item's first one
            key = torch.arange(on_keys.shape[2], device=weights.device)
            place = (key - scores.first[items, None, None]).clamp(min=0).expand_as(on_keys)  # padding has no weight
            self.keys.scatter_add_(1, place.transpose(0, 1).flatten(1), on_keys.transpose(0, 1).flatten(1))
        query = torch.arange(begin, begin + weights.shape[2], device=weights.device)
        offset = (weights.argmax(-1) - query).clamp(-_FARTHEST - 1, _FARTHEST + 1) + _FARTHEST + 1
        counted = valid.expand_as(offset).to(self.offsets.dtype)
        # Queries are counted by how many places before or after themselves they look.
        self.offsets.scatter_add_(1, offset.transpose(0, 1).flatten(1), counted.transpose(0, 1).flatten(1))
        most = torch.stack([torch.where(valid, x, -math.inf).amax((0, 2)) for x in (top[..., 0], 1 / total)])
        self.most = torch.maximum(self.most, most)
        flat = weights.flatten(2)
        self.products += (flat @ flat.transpose(1, 2)).sum(0)
        even = torch.where(valid, seen.clamp(min=2).rsqrt(), 0).expand_as(total).transpose(0, 1).flatten(1)
        self.uniform += even @ even.T


def as_row(figures: dict[str, float], counts: dict[str, int], sums: HeadSums) -> dict[str, Any]:
    """The figures and counts of a head, with None for what it does not have: a similar head, or an offset."""
    row: dict[str, Any] = {**counts, **figures}
    if not math.isfinite(row["similarity"]):
        row |= dict.fromkeys(("nearest", "similarity"))
    if not sums.square or row["offset_share"] <= STEADY:  # of other keys than the queries' tokens
        row["offset"] = None
    return row


def _distances(weights: Tensor, begin: int, end: int) -> list[Tensor]:
    """For each query from `begin` on the weight on its own place, and the mean distance to where it looks.

    Keys before the block are all to its left, those after it to its right: sums of weights and of places suffice.
    """
    near = weights[..., begin:end]
    query = torch.arange(begin, end, device=weights.device)
    key = torch.arange(weights.shape[-1], device=weights.device)
    side = (key < begin).to(weights.dtype) - (key >= end).to(weights.dtype)
    far = weights @ torch.stack([side, side * key], 1)
    distance = query * far[..., 0] - far[..., 1] + (near * (query[:, None] - query).abs()).sum(-1)
    return [near.diagonal(0, -2, -1), distance]
