"""The attention of each head: entropy, largest logit, where it looks, what it adds, and whether another looks alike."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hookcli.errors import in_brief
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.probes.shared.attention_heads import HeadSums, Scores
from hookcli.table import Row, Skipped
from hookcli.table.columns.layouts import ATTENTION
from hookcli.table.heads import NO_ATTENTION, noted, verdict
from hookcli.table.names import is_within
from hookcli.tensors import tree

_FUSED, _FLEX, _SOFTMAX = "scaled_dot_product_attention", "flex_attention", "softmax"
_PRODUCTS = ("matmul", "bmm", "einsum")
_PATHS = {
    "_native_multi_head_attention": "MultiheadAttention took its fused path, which has no weights",
    "_transformer_encoder_layer_fwd": "TransformerEncoderLayer took its fused path, which has no weights",
}
_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
_NAMED = re.compile(r"attention|attn", re.IGNORECASE)
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
_UNSEEN = "no softmax or scaled_dot_product_attention was seen in it: it is compiled, or another library's (flash_attn)"


@dataclass
class _Softmax:
    """A softmax that is attention's if a product with its weights follows in the same module, or in one around it."""

    fqn: str
    shape: torch.Size
    numel: int
    sums: HeadSums


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
        self._softmax: _Softmax | None = None

    def attach(self, session: HookSession) -> None:
        self._session = session
        session.functions(self._see, _FUSED, _FLEX, _SOFTMAX, *_PRODUCTS, *_PATHS)

    def batch_ended(self) -> None:
        """Nothing is left to reduce: sums go on over batches."""
        self._softmax = None

    def _see(self, event: HookEvent) -> None:
        assert event.operator
        name = event.operator.name
        if name in _PATHS:
            self._skip(event.fqn, _PATHS[name])
            return
        with ExitStack() as stack:
            for context in (torch.inference_mode(False), torch.no_grad(), torch.DisableTorchFunction()):
                stack.enter_context(context)
            try:
                if name == _FUSED:
                    self._fused(event)
                elif name == _FLEX:
                    self._flex(event)
                elif name == _SOFTMAX:
                    self._begin(event)
                elif self._softmax:
                    self._product(event, self._softmax)
            except (ValueError, TypeError, RuntimeError, IndexError) as error:
                self._skip(event.fqn, f"its weights can't be computed again ({in_brief(error)})")

    # What attention is made of.

    def _fused(self, event: HookEvent) -> None:
        given = dict(zip(_PARAMETERS, event.args, strict=False)) | dict(event.kwargs)
        query, key, mask = given["query"], given["key"], given.get("attn_mask")
        if not _plain(query, key, *([mask] if mask is not None else [])):
            self._skip(event.fqn, f"its tensors are of a kind that is not looked into ({_kinds(query, key, mask)})")
            return
        heads = _heads(event.module, query)
        scale = given.get("scale") or query.shape[-1] ** -0.5
        if mask is not None and query.dim() != mask.dim():
            mask = mask[(None,) * (query.dim() - mask.dim())]
        mask = mask if mask is None else _by_heads(mask, heads)
        causal = bool(given.get("is_causal"))
        scores = Scores(_by_heads(query, heads), _by_heads(key, heads), scale, mask, causal)
        self._add(event, scores, _by_heads(event.output, heads))

    def _flex(self, event: HookEvent) -> None:
        query, key, _, score_mod, block_mask, scale, _, *buffers = event.args
        of_score, of_mask = (*buffers, (), ())[:2]

        def score(scores: Tensor, *places: Tensor) -> Tensor:
            changed: Tensor = score_mod(scores, *places, *of_score)
            return changed

        scores = Scores(query, key, scale, score_mod=score, mask_mod=lambda *at: block_mask[-1](*at, *of_mask))
        self._add(event, scores, event.output[0])

    def _begin(self, event: HookEvent) -> None:
        """Take the figures of a softmax over the last of at least three dimensions, in case that it is attention's."""
        given = dict(zip(("input", "dim"), event.args, strict=False)) | dict(event.kwargs)
        logits = given["input"]
        self._softmax = None
        if logits.dim() < 3 or given.get("dim") not in (-1, logits.dim() - 1) or not _plain(logits):
            return
        by_heads = _by_heads(logits, _heads(event.module, logits))
        sums = HeadSums(by_heads.shape[1], logits.device)
        sums.add(Scores(by_heads, by_heads, given=by_heads))
        self._softmax = _Softmax(event.fqn, logits.shape, logits.numel(), sums)

    def _product(self, event: HookEvent, softmax: _Softmax) -> None:
        """Take the product of a softmax's weights with values for the output of the heads."""
        operands = [x for _, x in tree.leaves(list(event.args))]
        weights = next((x for x in operands if x.shape[-2:] == softmax.shape[-2:] and x.numel() == softmax.numel), None)
        inside = softmax.fqn == event.fqn or is_within(softmax.fqn, event.fqn)
        if weights is None or not inside or min(x.dim() for x in operands) < 3:
            return
        self._softmax = None
        output, dim = event.output, -3
        if isinstance(event.args[0], str):
            given, _, made = event.args[0].replace(" ", "").partition("->")
            letters = given.split(",")[next(i for i, x in enumerate(operands) if x is weights)]
            dim = made.index(letters[-3])
        if output.dim() == 3:
            output, dim = _by_heads(output, softmax.sums.heads), 1
        softmax.sums.add_output(output, dim % output.dim())
        self._merge(event, softmax.sums)

    def _add(self, event: HookEvent, scores: Scores, output: Tensor) -> None:
        sums = HeadSums(scores.shape[1], output.device)
        sums.add(scores)
        sums.add_output(output)
        self._merge(event, sums)

    def _merge(self, event: HookEvent, sums: HeadSums) -> None:
        key = event.fqn, event.call
        if key not in self._layers:
            place = replace(event, args=(), kwargs={}, output=None)
            self._layers[key] = place, sums
        elif not self._layers[key][1].merge(sums):
            self._skip(event.fqn, "a further call of attention in it has another number of heads")

    # When the run is over.

    def rows(self) -> list[Row]:
        """A row per head, in the order in which modules were entered; notes say what is wrong with one."""
        rows = []
        for event, sums in sorted(self._layers.values(), key=lambda layer: layer[0].index):
            assert event.module is not None
            place = {"fqn": event.fqn, "type": tree.type_text(event.module), "call": event.call, "index": event.index}
            for head, figures in enumerate(sums.figures()):
                if not figures["queries"]:
                    self._skip(event.fqn, "no query may see two keys, so there is nothing to choose from")
                elif not math.isfinite(figures["entropy"]):
                    self._skip(event.fqn, f"head {head}: its logits are not finite")
                else:
                    rows.append(Row({**place, "head": head, "heads": 1, **figures}))
        return noted(rows)

    def totals(self) -> Mapping[str, object]:
        """The verdict, and the numbers of heads and of calls of attention."""
        rows = self.rows()
        return {"verdict": verdict(rows), "heads": len(rows)} if rows else {"nothing": NO_ATTENTION}

    def skipped(self) -> list[Skipped]:
        """Attention that could not be seen, and whatever else looks like attention and had none."""
        self.rows()  # which notes what has no figures
        return [*self._skipped, *self._without()]

    def _without(self) -> Iterator[Skipped]:
        """Modules named after attention that were called, and in which none was seen; the outermost of each."""
        seen = [fqn for fqn, _ in self._layers] + [skipped.fqn for skipped in self._skipped]
        never, hidden = self._session.never_called(), self._session.not_hooked()
        told: list[str] = []
        for fqn, module in self._session.model.named_modules():
            around = any(is_within(fqn, owner) for owner in told)
            if around or not _NAMED.search(type(module).__name__) or fqn in never:
                continue
            if not any(one == fqn or is_within(one, fqn) for one in seen):
                told.append(fqn)
                inside = next((why for name, why in hidden.items() if name == fqn or is_within(fqn, name)), "")
                yield Skipped(fqn, inside or _UNSEEN)

    def notes(self, rows: Sequence[Row]) -> list[str]:
        """How to read a row of several heads."""
        several = "a row of several heads has the highest of their figures, but the lowest entropy and output"
        return [several] if rows else []

    def _skip(self, fqn: str, reason: str) -> None:
        self._skipped[Skipped(fqn, reason)] = None


def _plain(*tensors: Tensor) -> bool:
    return all((tree.is_plain(x) and x.is_floating_point()) or x.dtype is torch.bool for x in tensors)


def _kinds(*values: object) -> str:
    return ", ".join(dict.fromkeys(type(x).__name__ for x in values if x is not None))


def _heads(module: nn.Module | None, x: Tensor) -> int:
    """The number of heads that a tensor of three dimensions has in the first, as its module says; 1 if it says none."""
    named = (getattr(module, name, None) for name in _HEADS)
    return next((n for n in named if type(n) is int and n and x.shape[0] % n == 0), 1)


def _by_heads(x: Tensor, heads: int) -> Tensor:
    """The tensor with the dimensions batch, heads, queries or keys, and size."""
    if x.dim() < 4:
        return x.unflatten(0, (-1, heads)) if x.dim() == 3 and x.shape[0] > 1 else x[(None,) * (4 - x.dim())]
    return x.flatten(0, -4)
