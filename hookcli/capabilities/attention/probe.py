"""The attention of each head: entropy, largest logit, where it looks, what it adds, and whether another looks alike."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hookcli.capabilities.attention.head_sums import HeadSums, Scores
from hookcli.capabilities.attention.heads import NO_ATTENTION, noted, verdict
from hookcli.capabilities.attention.layout import COLUMNS
from hookcli.errors import in_brief
from hookcli.hooks.events import HookEvent
from hookcli.hooks.operators.functions import type_of
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.probes.shared.module_facts import HEAD_COUNTS
from hookcli.table import Report, Row, Skipped
from hookcli.table.meta import Meta
from hookcli.table.names import around, is_within, is_within_any
from hookcli.tensors import tree

_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
_NAMED = re.compile(r"attention|attn", re.IGNORECASE)
_ACROSS = re.compile(r"cross|encoder_?attn|enc_?dec|multihead_attn", re.IGNORECASE)
_OF_OTHERS = ("encoder_hidden_states", "key_value_states", "memory", "context")  # another word
_UNSEEN = "no attention was seen in it: another formula, a compiled or fused path, or another library (flash_attn)"


class AttentionProbe(Probe):
    """A row per head of each call of attention. The weights are computed again, in blocks; dropout is ignored."""

    name = "attention"
    columns = COLUMNS
    grouping = "disjoint"
    fastpath = False
    merges_batches = in_steps = True

    def __init__(self) -> None:
        self._layers: dict[tuple[str, int], tuple[HookEvent, HeadSums]] = {}
        self._skipped: dict[Skipped, None] = {}
        self._made: tuple[list[Row], list[Row]] | None = None
        self._drawn = False  # tokens are 0 or 1: with so few kinds of keys, heads look alike that are not
        self._softmaxes: list[tuple[str, torch.Size, HeadSums]] = []
        """The last two: attention's if a product of their weights follows in the module, or in one around it."""
        self._across = set[str]()  # modules whose last call had keys of another sequence than its queries
        self._doubted = False  # another product followed: of further logits, or keys meet values first, as if linear

    def attach(self, session: HookSession) -> None:
        self._session = session
        session.forward_pre(self._enter)
        session.functions(self._see, *self._FUNCTIONS, "matmul", "bmm", "einsum")

    def batch_ended(self) -> None:
        """Nothing is left to reduce: sums go on over batches."""

    def _enter(self, event: HookEvent) -> None:
        """Note whether a module is given keys beside its queries, so that padding of the keys says nothing of these."""
        across = any(isinstance(event.kwargs.get(name), Tensor) for name in _OF_OTHERS)
        if isinstance(event.module, nn.MultiheadAttention):
            given = dict(zip(("query", "key"), event.args, strict=False)) | dict(event.kwargs)
            across = given.get("key") is not given.get("query")
        if across:
            self._across.add(event.fqn)
        else:
            self._across.discard(event.fqn)

    def _is_of_one_sequence(self, event: HookEvent) -> bool:
        """True unless the module, or one around it, is known to have keys of another sequence than its queries."""
        named = _ACROSS.search(f"{event.fqn} {type(event.module).__name__}")
        return not named and not any(fqn in self._across for fqn in (event.fqn, *around(event.fqn)))

    def _see(self, event: HookEvent) -> None:
        assert event.operator
        look = self._FUNCTIONS.get(event.operator.name, AttentionProbe._product)
        device = next((x.device.type for _, x in tree.arguments(event.args, event.kwargs)), "cpu")
        try:
            plain = torch.autocast(device, enabled=False)
            with torch.inference_mode(False), torch.no_grad(), torch.DisableTorchFunction(), plain:
                look(self, event)
        except (ValueError, TypeError, RuntimeError, LookupError, AttributeError) as error:
            self._skip(event.fqn, f"its weights can't be computed again ({in_brief(error)})")

    def _fused(self, event: HookEvent) -> None:
        given = dict(zip(_PARAMETERS, event.args, strict=False)) | dict(event.kwargs)
        query, key, mask, scale = given["query"], given["key"], given.get("attn_mask"), given.get("scale")
        if mask is not None and type(mask).__name__ == "CausalBias":  # torch.nn.attention.bias: no values
            last, both = mask.variant.name == "LOWER_RIGHT", (query.shape[-2], key.shape[-2])
            mask = torch.ones(both, dtype=torch.bool, device=query.device).tril((both[1] - both[0]) * last)
        _require_plain(query, key, mask)
        by_heads = partial(_by_heads, lead=query.shape[:-2], heads=0 if query.dim() == 4 else self._heads(event))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        mask = None if mask is None else by_heads(mask)
        one = self._is_of_one_sequence(event)
        scores = Scores(by_heads(query), by_heads(key), scale, mask, bool(given.get("is_causal")), one_sequence=one)
        self._merge(event, HeadSums.of(scores).add_output(by_heads(event.output)))

    def _flex(self, event: HookEvent) -> None:
        query, key, _, score_mod, block_mask, scale, _, *buffers = event.args
        of_score, of_mask = (*buffers, (), ())[:2]
        score: Any = lambda scores, *at: score_mod(scores, *at, *of_score)  # noqa: E731
        scores = Scores(query, key, scale, score_mod=score, mask_mod=lambda *at: block_mask[-1](*at, *of_mask))
        self._merge(event, HeadSums.of(scores).add_output(event.output[0]))

    def _begin(self, event: HookEvent) -> None:
        """Take the figures of a softmax over the last of three or more dimensions, in case that it is attention's."""
        given = dict(zip(("input", "dim"), event.args, strict=False)) | dict(event.kwargs)
        logits = given["input"]
        if logits.dim() > 2 and given.get("dim") in (-1, logits.dim() - 1):
            _require_plain(logits)
            if event.output is logits:
                raise ValueError("its softmax overwrites the logits")
            by_heads = _by_heads(logits, logits.shape[:-2], self._heads(event))
            scores = Scores(by_heads, by_heads, given=by_heads, one_sequence=self._is_of_one_sequence(event))
            found = event.fqn, logits.shape, HeadSums.of(scores)
            self._softmaxes, self._doubted = [*self._softmaxes[-1:], found], False

    def _product(self, event: HookEvent) -> None:
        """Take the product of a softmax's weights, perhaps less those of a sink, with values for the heads' output."""
        operands = tree.received(event.args, event.kwargs)
        inside = [one for one in self._softmaxes if event.fqn in (one[0], *around(one[0]))]
        if not inside or len(operands) < 2 or min(x.dim() for x in operands) < 3:
            return
        equation, output = next(iter(event.args), None), event.output
        by_letters = equation if isinstance(equation, str) else ""
        fits = ((one, at) for one in inside for at, x in enumerate(operands) if _fits(x, at, one[1], by_letters))
        if not (found := next(fits, None)) or self._doubted:
            self._doubted = True
            return
        (_, shape, sums), at = found
        self._softmaxes.remove(found[0])
        if by_letters:
            output = _in_order(output, by_letters, at)
        elif output.shape[:-2].numel() == shape[:-2].numel():  # batch and heads may have been joined meanwhile
            output = output.reshape(*shape[:-2], *output.shape[-2:])
        self._merge(event, sums.add_output(_by_heads(output, shape[:-2], self._heads(event))))

    _FUNCTIONS: ClassVar = {"scaled_dot_product_attention": _fused, "flex_attention": _flex, "softmax": _begin}

    def _merge(self, event: HookEvent, sums: HeadSums) -> None:
        key, self._made = (event.fqn, event.call), None
        if not sums.heads:
            self._skip(event.fqn, "a call of attention in it has no heads")
        elif key not in self._layers:
            self._layers[key] = replace(event, args=(), kwargs={}, output=None), sums
        elif not self._layers[key][1].merge(sums):
            self._skip(event.fqn, "a further call of attention in it has another number of heads")

    def report(self, model: str, meta: Meta) -> Report:
        self._drawn, self._made = "(0 or 1)" in str(meta.get("input")), None
        return super().report(model, meta)

    def rows(self) -> list[Row]:
        """A row per head, in the order in which modules were entered; notes say what is wrong with one."""
        return noted(self._measured()[0])

    def _measured(self) -> tuple[list[Row], list[Row]]:
        """The heads with figures, and those with NaN or infinities; rows, totals and skipped ask for them."""
        if self._made:
            return self._made
        self._made = rows, broken = list[Row](), list[Row]()
        for event, sums in sorted(self._layers.values(), key=lambda layer: layer[0].index):
            place = {"fqn": event.fqn, "type": type_of(event.module), "call": event.call, "index": event.index}
            for head, figures in enumerate(sums.figures()):
                if not figures["queries"]:
                    self._skip(event.fqn, "no query may see two keys, so there is nothing to choose from")
                    continue
                figures |= dict.fromkeys(("nearest", "similarity")) if self._drawn else {}
                finite = math.isfinite(figures["entropy"] + figures["output_rms"])
                (rows if finite else broken).append(Row({**place, "head": head, "heads": 1, **figures}))
                if not finite:
                    self._skip(event.fqn, f"head {head}: its logits or output are not finite")
        return rows, broken

    def totals(self) -> Mapping[str, object]:
        rows, broken = self._measured()
        nothing = "attention was seen, but there is nothing to measure in it" if self._layers else NO_ATTENTION
        found = {"verdict": verdict(rows, broken), "heads": len(rows)} if rows or broken else None
        return found or {"nothing": nothing}

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
        drawn = ["all tokens were 0 or 1 (--data gives real ones), so heads are not compared"] * self._drawn
        return [several, *drawn] if rows else []

    def _heads(self, event: HookEvent) -> int:
        """The number of heads that the module says, or for a layer of softmax the one around it; 0 if it says none."""
        module = event.module
        if isinstance(module, nn.Softmax):
            module = self._session.model.get_submodule(event.fqn.rpartition(".")[0])
        named = (getattr(module, name, None) for name in HEAD_COUNTS)
        return next((n for n in named if type(n) is int), 0)

    def _skip(self, fqn: str, reason: str) -> None:
        self._skipped[Skipped(fqn, reason)] = None


def _require_plain(*tensors: Tensor | None) -> None:
    """Raises TypeError for tensors that compute in their own way."""
    for x in tensors:
        if x is not None and not (tree.is_plain(x) and (x.is_floating_point() or x.dtype is torch.bool)):
            raise TypeError(f"a tensor of a kind that is not looked into, {type(x).__name__} of {tree.dtype_text(x)}")


def _fits(x: Tensor, at: int, shape: torch.Size, equation: str) -> bool:
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


def _in_order(output: Tensor, equation: str, weights: int) -> Tensor:
    """The output of einsum, with its dimensions in the order of its operand `weights`, and the values' size last."""
    given, _, made = equation.replace(" ", "").replace("...", "").partition("->")
    operands = given.split(",")
    lead = operands.pop(weights)[:-1]
    if not set(lead) <= set(made) or lead[-1:] in operands[0]:
        raise ValueError(f"einsum {equation}: queries are not last but one, or heads are summed over")
    further = output.dim() - len(made)
    order = [*lead, *(each for each in made if each not in lead)]
    return output.permute(*range(further), *(further + made.index(each) for each in order))


def _by_heads(x: Tensor, lead: Sequence[int], heads: int) -> Tensor:
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
