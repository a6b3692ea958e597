"""Figures of attention's heads from blocks of scores, so that no whole matrix of weights is ever in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_HIDDEN = -1e30
"""The score of a key that a query may not see: finite, so that its weight times its score is 0."""
_MASKS = -80.0
"""A mask adds this or less to the score of a key that it hides: -inf, -1e9, -10000, or -100 in Swin."""
_MASKED = -5e3
"""A score of this or less is a hidden key's, where no other head's score of it can tell."""
_CPU_BLOCK, _DEVICE_BLOCK = 1 << 19, 1 << 24
"""Scores in a block: on the CPU they stay in its cache."""
_LEAST = 8
"""Queries of a block, where keys are so many that its scores are more."""

Modify = Callable[..., Tensor]


@dataclass
class Scores:
    """The scores of queries (batch, heads, queries, size) and keys (batch, heads of keys, keys, size), by blocks.

    `mask`: True or 0 where a query may see a key, or what is added to the score; of four dimensions, each of which may
    be 1. `causal`: query i sees keys 0 to i. `score_mod(score, b, h, q, k)` and `mask_mod(b, h, q, k)` are those of
    `flex_attention`. `given`: the scores themselves, with the mask in them.
    """

    query: Tensor
    key: Tensor
    scale: float = 1.0
    mask: Tensor | None = None
    causal: bool = False
    score_mod: Modify | None = None
    mask_mod: Modify | None = None
    given: Tensor | None = None

    def __post_init__(self) -> None:
        source = self.query if self.given is None else self.given
        self.dtype = torch.float64 if source.dtype is torch.float64 else torch.float32
        self.device = source.device
        keys = self.key.shape[-2] if self.given is None else source.shape[-1]
        self.shape = (*source.shape[:3], keys)
        self.square = source.shape[2] == keys
        hides = self.mask if self.given is None else self.given
        self.first: Tensor | None = None
        """For each item of the batch the first key that any query may see; None if it is the first one."""
        if hides is not None and not (self.device.type == "cpu" and _sees(hides[..., 0].amax((1, 2))).all()):
            self.first = _sees(hides.amax((1, 2))).expand(-1, keys).int().argmax(-1)

    def block(self, items: slice, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """The scores of these queries, which may be overwritten, and how many keys each query may see."""
        if self.given is not None:
            scores = self.given[items, :, begin:end].to(self.dtype).clamp(min=_HIDDEN)
            limit = _MASKS if scores.shape[1] > 1 else _MASKED
            return scores, (scores.amax(1, keepdim=True) > limit).sum(-1)
        width = min(end, self.shape[3]) if self.causal else self.shape[3]
        query = self.query[items, :, begin:end].to(self.dtype) * self.scale
        key = self.key[items, :, :width].to(self.dtype)
        items_, heads, rows, size = query.shape
        grouped = query.reshape(items_, key.shape[1], -1, size)  # several heads of queries may share one of keys
        scores = (grouped @ key.transpose(-1, -2)).view(items_, heads, rows, width)
        if self.score_mod or self.mask_mod:
            return self._modified(scores, items, begin)
        seen = torch.full((1, 1, rows), width, device=self.device)
        if self.causal:
            places = torch.arange(begin, end, device=self.device)
            scores[..., begin:].masked_fill_(places[begin - begin : width - begin] > places[:, None], _HIDDEN)
            seen = (places + 1).clamp(max=width)[None, None]
        if self.mask is not None:
            hides = _part(self.mask, items, begin, end).expand(-1, -1, -1, width)
            seen = _sees(hides).sum(-1)
            if hides.dtype is torch.bool:
                scores.masked_fill_(~hides, _HIDDEN)
            else:
                scores.add_(hides).clamp_(min=_HIDDEN)
        return scores, seen

    def _modified(self, scores: Tensor, items: slice, begin: int) -> tuple[Tensor, Tensor]:
        """The scores as `flex_attention` changes them."""
        first = items.start
        places = [
            torch.arange(start, start + size, device=self.device).view([-1 if i == j else 1 for j in range(4)])
            for i, (start, size) in enumerate(zip((first, 0, begin, 0), scores.shape, strict=True))
        ]
        if self.score_mod:
            scores = self.score_mod(scores, *places).to(self.dtype).expand(scores.shape).contiguous()
        sees = scores > _HIDDEN
        if self.mask_mod:
            sees = sees & self.mask_mod(*places)
        return scores.masked_fill(~sees, _HIDDEN), sees.sum(-1)


def _sees(mask: Tensor) -> Tensor:
    return mask if mask.dtype is torch.bool else mask > _MASKS


def _part(mask: Tensor, items: slice, begin: int, end: int) -> Tensor:
    mask = mask[items] if mask.shape[0] > 1 else mask
    return mask[:, :, begin:end] if mask.shape[2] > 1 else mask


_EVEN = 0.01
"""Weights that differ less from uniform ones say nothing of what a head looks for."""
_SUMS = 6
"""Sums of each head: queries, entropy, its share of the most, weight on the first key and on the own, distance."""


class HeadSums:
    """Sums over queries, which those of further calls and batches are added to. They stay on the device."""

    def __init__(self, heads: int, device: torch.device) -> None:
        exact: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self.heads = heads
        self.sums = torch.zeros(_SUMS, heads, **exact)
        self.most = torch.full((2, heads), -math.inf, **exact)
        self.products = torch.zeros(heads, heads, **exact)
        self.uniform = torch.zeros(heads, heads, **exact)
        self.output = torch.zeros(heads, **exact)
        self.outputs = 0
        self.square = True
        self._block = _CPU_BLOCK if device.type == "cpu" else _DEVICE_BLOCK

    def add(self, scores: Scores) -> None:
        """Add the figures of all queries that may see two keys or more: the others have no choice."""
        batch, heads, queries, keys = scores.shape
        self.square &= scores.square
        rows = min(queries, max(_LEAST, self._block // (heads * keys)))
        items = max(1, self._block // (heads * queries * keys)) if rows == queries else 1
        for item in range(0, batch, items):
            for begin in range(0, queries, rows):
                self._add(scores, slice(item, item + items), begin, min(begin + rows, queries))

    def add_output(self, output: Tensor, dim: int = 1) -> None:
        """Add what the heads, in this dimension, return."""
        others = [i for i in range(output.dim()) if i != dim]
        self.output += (
            torch.linalg.vector_norm(output, dim=others, dtype=torch.promote_types(output.dtype, torch.float32))
            .double()
            .square()
        )
        self.outputs += output.numel() // output.shape[dim]

    def merge(self, other: HeadSums) -> bool:
        """Add the sums of further queries; False if they are of another number of heads, and were left out."""
        if other.heads != self.heads:
            return False
        for name in ("sums", "products", "uniform", "output"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.most = torch.maximum(self.most, other.most)
        self.outputs += other.outputs
        self.square &= other.square
        return True

    def figures(self) -> list[dict[str, Any]]:
        """The figures of each head. This waits for the device."""
        alike, nearest = self._similarity()
        output = (self.output / max(self.outputs, 1)).sqrt()
        share = output / output.mean().clamp(min=torch.finfo(output.dtype).tiny)
        of_heads = torch.stack([*self.sums, *self.most, output, share, alike, nearest]).T.tolist()
        figures = []
        for queries, *sums, logit, weight, rms, of_mean, cosine, like in of_heads:
            entropy, of_most, first, own, distance = (total / max(queries, 1) for total in sums)
            of_head = {"queries": int(queries), "entropy": entropy, "entropy_share": of_most, "max_logit": logit}
            of_head |= {"max_weight": weight, "first_share": first}
            of_head |= {"self_share": own, "distance": distance} if self.square else {}
            of_head |= {"output_rms": rms, "output_share": of_mean} if self.outputs else {}
            of_head |= {"similarity": cosine, "nearest": int(like)} if math.isfinite(cosine) else {}
            figures.append(of_head)
        return figures

    def _similarity(self) -> tuple[Tensor, Tensor]:
        """The cosine of each head's weights and those of the head that is nearest, both less uniform weights; and that
        head. NaN for a head without another, and for weights that are uniform but for `_EVEN` of their norm.
        """
        centred = self.products - self.uniform
        own = centred.diagonal()
        differs = own > _EVEN**2 * self.uniform.diagonal()
        cosine = centred * (own[:, None] * own).rsqrt()
        cosine[~(differs & differs[:, None])] = -math.inf
        cosine.fill_diagonal_(-math.inf)
        alike, nearest = cosine.max(1)
        return torch.where(alike.isinf(), math.nan, alike.clamp(-1, 1)), nearest

    def _add(self, scores: Scores, items: slice, begin: int, end: int) -> None:
        logits, seen = scores.block(items, begin, end)
        valid = seen >= 2
        top = logits.amax(-1, keepdim=True)
        logits -= top
        weights = torch.exp(logits)
        total = weights.sum(-1)
        entropy = total.log() - logits.mul_(weights).sum(-1) / total
        weights *= torch.where(valid, 1 / total, 0)[..., None]
        share = entropy / seen.clamp(min=2).log()
        if scores.first is None:
            first = weights[..., 0]
        else:
            first = weights.gather(-1, scores.first[items].view(-1, 1, 1, 1).expand(*weights.shape[:3], 1))[..., 0]
        figures = [valid.expand_as(total), *(torch.where(valid, x, 0) for x in (entropy, share)), first]
        if scores.square:
            figures += _distances(weights, begin, end)
        sums = torch.stack([x.to(weights.dtype).sum((0, 2)) for x in figures])
        self.sums[: len(sums)] += sums
        most = torch.stack([torch.where(valid, x, -math.inf).amax((0, 2)) for x in (top[..., 0], 1 / total)])
        self.most = torch.maximum(self.most, most)
        flat = weights.flatten(2)
        self.products += (flat @ flat.transpose(1, 2)).sum(0)
        even = torch.where(valid, seen.clamp(min=2).rsqrt(), 0).expand_as(total).transpose(0, 1).flatten(1)
        self.uniform += even @ even.T


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
