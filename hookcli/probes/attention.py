"""The attention of each head: entropy, largest logit, where it looks, what it adds, and whether another looks alike."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hookcli.errors import in_brief
from hookcli.hooks.events import HookEvent
from hookcli.hooks.operators.functions import type_of
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.probes.shared.attention_heads import HeadSums, Scores
from hookcli.table import Row, Skipped
from hookcli.table.columns.layouts import ATTENTION
from hookcli.table.heads import NO_ATTENTION, noted, verdict
from hookcli.table.names import is_within, is_within_any
from hookcli.tensors import tree

_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
_NAMED = re.compile(r"attention|attn", re.IGNORECASE)
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
_UNSEEN = "no attention was seen in it: it is compiled, on PyTorch's fused path, or another library's (flash_attn)"


class AttentionProbe(Probe):
    """A row per head of each call of attention. The weights are computed again, in blocks; dropout is ignored."""

    name = "attention"
    columns = ATTENTION
    grouping = "disjoint"
    fastpath = False
    merges_batches = True
    in_steps = True

    def __init__(self) -> None:
        self._layers: dict[tuple[str, int], tuple[HookEvent, HeadSums]] = {}
        self._skipped: dict[Skipped, None] = {}
        self._softmax: tuple[str, torch.Size, HeadSums] | None = None
        """The last softmax: attention's if a product with its weights follows in its module, or in one around it."""

    def attach(self, session: HookSession) -> None:
        self._session = session
        session.functions(self._see, *self._FUNCTIONS, "matmul", "bmm", "einsum")

    def batch_ended(self) -> None:
        """Nothing is left to reduce: sums go on over batches."""

    def _see(self, event: HookEvent) -> None:
        assert event.operator
        look = self._FUNCTIONS.get(event.operator.name, AttentionProbe._product)
        device = next((x.device.type for _, x in tree.leaves(list(event.args))), "cpu")
        try:
            plain = torch.autocast(device, enabled=False)
            with torch.inference_mode(False), torch.no_grad(), torch.DisableTorchFunction(), plain:
                look(self, event)
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            self._skip(event.fqn, f"its weights can't be computed again ({in_brief(error)})")

    def _fused(self, event: HookEvent) -> None:
        given = dict(zip(_PARAMETERS, event.args, strict=False)) | dict(event.kwargs)
        query, key, mask = given["query"], given["key"], given.get("attn_mask")
        _require_plain(query, key, mask)
        heads = _heads(event.module, query)
        if mask is not None:
            mask = _by_heads(mask[(None,) * (query.dim() - mask.dim())], heads)
        scale = given.get("scale") or query.shape[-1] ** -0.5
        scores = Scores(_by_heads(query, heads), _by_heads(key, heads), scale, mask, bool(given.get("is_causal")))
        self._merge(event, HeadSums.of(scores).add_output(_by_heads(event.output, heads)))

    def _flex(self, event: HookEvent) -> None:
        query, key, _, score_mod, block_mask, scale, _, *buffers = event.args
        of_score, of_mask = (*buffers, (), ())[:2]
        score: Any = lambda scores, *at: score_mod(scores, *at, *of_score)  # noqa: E731
        scores = Scores(query, key, scale, score_mod=score, mask_mod=lambda *at: block_mask[-1](*at, *of_mask))
        self._merge(event, HeadSums.of(scores).add_output(event.output[0]))

    def _begin(self, event: HookEvent) -> None:
        """Take the figures of a softmax over the last of three or more dimensions, in case that it is attention's."""
        given = dict(zip(("input", "dim"), event.args, strict=False)) | dict(event.kwargs)
        logits, self._softmax = given["input"], None
        if logits.dim() > 2 and given.get("dim") in (-1, logits.dim() - 1):
            _require_plain(logits)
            by_heads = _by_heads(logits, _heads(event.module, logits))
            self._softmax = event.fqn, logits.shape, HeadSums.of(Scores(by_heads, by_heads, given=by_heads))

    def _product(self, event: HookEvent) -> None:
        """Take the product of a softmax's weights with values for the output of the heads."""
        fqn, shape, sums = self._softmax or ("", torch.Size(), None)
        operands = [x for _, x in tree.leaves(list(event.args))]
        at = next(
            (i for i, x in enumerate(operands) if (x.numel(), *x.shape[-2:]) == (shape.numel(), *shape[-2:])), None
        )
        inside = fqn == event.fqn or is_within(fqn, event.fqn)
        if sums is None or at is None or not inside or min(x.dim() for x in operands) < 3:
            return
        output, dim = event.output, -3
        if isinstance(event.args[0], str):  # einsum's
            given, _, made = event.args[0].replace(" ", "").partition("->")
            dim = made.index(given.split(",")[at][-3])
        if output.dim() == 3:
            output, dim = _by_heads(output, sums.heads), 1
        self._softmax = None
        self._merge(event, sums.add_output(output, dim % output.dim()))

    _FUNCTIONS: ClassVar = {"scaled_dot_product_attention": _fused, "flex_attention": _flex, "softmax": _begin}

    def _merge(self, event: HookEvent, sums: HeadSums) -> None:
        key = event.fqn, event.call
        if key not in self._layers:
            self._layers[key] = replace(event, args=(), kwargs={}, output=None), sums
        elif not self._layers[key][1].merge(sums):
            self._skip(event.fqn, "a further call of attention in it has another number of heads")

    def rows(self) -> list[Row]:
        """A row per head, in the order in which modules were entered; notes say what is wrong with one."""
        rows = []
        for event, sums in sorted(self._layers.values(), key=lambda layer: layer[0].index):
            place = {"fqn": event.fqn, "type": type_of(event.module), "call": event.call, "index": event.index}
            for head, figures in enumerate(sums.figures()):
                if not figures["queries"]:
                    self._skip(event.fqn, "no query may see two keys, so there is nothing to choose from")
                elif not math.isfinite(figures["entropy"]):
                    self._skip(event.fqn, f"head {head}: its logits are not finite")
                else:
                    rows.append(Row({**place, "head": head, "heads": 1, **figures}))
        return noted(rows)

    def totals(self) -> Mapping[str, object]:
        return {"verdict": verdict(rows), "heads": len(rows)} if (rows := self.rows()) else {"nothing": NO_ATTENTION}

    def skipped(self) -> list[Skipped]:
        """Attention without figures, and modules named after it that ran without any: the outermost of each."""
        self.rows()  # which notes what has no figures
        seen = [fqn for fqn, _ in self._layers] + [skipped.fqn for skipped in self._skipped]
        never, hidden = self._session.never_called(), self._session.not_hooked()
        told: dict[str, str] = {}
        for fqn, module in self._session.model.named_modules():
            known = fqn in never or is_within_any(fqn, told) or any(one == fqn or is_within(one, fqn) for one in seen)
            if _NAMED.search(type(module).__name__) and not known:
                told[fqn] = next((why for n, why in hidden.items() if n == fqn or is_within(fqn, n)), _UNSEEN)
        return [*self._skipped, *(Skipped(fqn, why) for fqn, why in told.items())]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        several = "a row of several heads has the highest of their figures, but the lowest entropy and output"
        return [several] * bool(rows)

    def _skip(self, fqn: str, reason: str) -> None:
        self._skipped[Skipped(fqn, reason)] = None


def _require_plain(*tensors: Tensor | None) -> None:
    """Raises TypeError for tensors that compute in their own way."""
    for x in tensors:
        if x is not None and not (tree.is_plain(x) and (x.is_floating_point() or x.dtype is torch.bool)):
            raise TypeError(f"a tensor of a kind that is not looked into, {type(x).__name__} of {tree.dtype_text(x)}")


def _heads(module: nn.Module | None, x: Tensor) -> int:
    """The number of heads that a tensor of three dimensions has in the first, as its module says; 1 if it says none."""
    named = (getattr(module, name, None) for name in HEAD_COUNTS)
    return next((n for n in named if type(n) is int and n and x.shape[0] % n == 0), 1)


def _by_heads(x: Tensor, heads: int) -> Tensor:
    """The tensor with the dimensions batch, heads, queries or keys, and size."""
    if x.dim() < 4:
        return x.unflatten(0, (-1, heads)) if x.dim() == 3 and x.shape[0] > 1 else x[(None,) * (4 - x.dim())]
    return x.flatten(0, -4)
