"""The attention of each head: entropy, largest logit, where it looks, what it adds, and whether another looks alike."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

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
from hookcli.probes.shared.attention_calls import FLEX, FUNCTIONS, AttentionCall, AttentionCalls, Softmax, require_plain
from hookcli.table import Report, Row, Skipped
from hookcli.table.formatting import counted
from hookcli.table.meta import Meta
from hookcli.table.names import around, in_words, is_within, is_within_any
from hookcli.tensors import tree

_NAMED = re.compile(r"attention|attn", re.IGNORECASE)
_ACROSS = re.compile(r"cross|encoder_?attn|enc_?dec|multihead_attn", re.IGNORECASE)
_OF_OTHERS = ("encoder_hidden_states", "key_value_states", "memory", "context")  # another word
_UNSEEN = "no attention was seen in it: another formula, a compiled or fused path, or another library (flash_attn)"


class AttentionProbe(Probe):
    """A row per head of each call of attention. The weights are computed again, in blocks; dropout is ignored.

    `heads`: the number of heads for modules that don't say theirs.
    """

    name = "attention"
    columns = COLUMNS
    grouping = "disjoint"
    fastpath = False
    merges_batches = in_steps = True

    def __init__(self, heads: int = 0) -> None:
        self._number = heads
        self._layers: dict[tuple[str, int], tuple[HookEvent, HeadSums]] = {}
        self._skipped: dict[Skipped, None] = {}
        self._made: tuple[list[Row], list[Row]] | None = None
        self._drawn = False  # tokens are 0 or 1: with so few kinds of keys, heads look alike that are not
        self._across = set[str]()  # modules whose last call had keys of another sequence than its queries
        self._given: dict[str, set[int]] = {}  # the ids of the tensors that the last call of a module was given
        self._projected: dict[str, list[int]] = {}  # the ones that layers in it were given, in their order

    def attach(self, session: HookSession) -> None:
        self._session, self._calls = session, AttentionCalls(session, self._number)
        session.forward_pre(self._enter)
        session.functions(self._see, *FUNCTIONS)

    def batch_ended(self) -> None:
        """Nothing is left to reduce: sums go on over batches."""

    def _enter(self, event: HookEvent) -> None:
        """Note whether a module is given keys beside its queries, so that padding of the keys says nothing of these."""
        across = any(isinstance(event.kwargs.get(name), Tensor) for name in _OF_OTHERS)
        if isinstance(event.module, nn.MultiheadAttention):
            arguments = dict(zip(("query", "key"), event.args, strict=False)) | dict(event.kwargs)
            across = arguments.get("key") is not arguments.get("query")
        if across:
            self._across.add(event.fqn)
        else:
            self._across.discard(event.fqn)
        tensors = {id(x) for _, x in tree.arguments(event.args, event.kwargs) if x.dim() >= 3}
        self._given[event.fqn], self._projected[event.fqn] = tensors, []
        owner = next((fqn for fqn in around(event.fqn) if fqn in self._given), None)
        received = {id(x) for x in event.args[:1]}
        if owner is not None and event.module and not any(event.module.children()):
            self._projected[owner] += received & self._given[owner]

    def _is_of_one_sequence(self, event: HookEvent) -> bool:
        """True unless the module, or one around it, is known to have keys of another sequence than its queries.

        So it is where the first two layers of the module that were given its own inputs, the projections of queries and
        keys, were given two.
        """
        named = _ACROSS.search(f"{event.fqn} {type(event.module).__name__}")
        formula = event.module and next(event.module.parameters(), None) is None  # the module around it projects
        projecting = [event.fqn, *around(event.fqn)][: 2 if formula else 1]
        two = any(len({*self._projected.get(fqn, ())[:2]}) == 2 for fqn in projecting)
        return not named and not two and not any(fqn in self._across for fqn in (event.fqn, *around(event.fqn)))

    def _see(self, event: HookEvent) -> None:
        device = next((x.device.type for _, x in tree.arguments(event.args, event.kwargs)), "cpu")
        try:
            plain = torch.autocast(device, enabled=False)
            with torch.inference_mode(False), torch.no_grad(), torch.DisableTorchFunction(), plain:
                self._look(event)
        except (ValueError, TypeError, RuntimeError, LookupError, AttributeError) as error:
            self._skip(event.fqn, f"its weights can't be computed again ({in_brief(error)})")

    def _look(self, event: HookEvent) -> None:
        """Take the figures of a softmax, in case that it is attention's, and of attention when it ends."""
        call = self._calls.of(event)
        if isinstance(call, Softmax):
            logits = call.by_heads(tree.received(event.args, event.kwargs)[0])
            scores = Scores(logits, logits, logits=logits, one_sequence=self._is_of_one_sequence(event))
            call.figures = HeadSums.of(scores)
        elif call:
            sums = call.softmax.figures if call.softmax else HeadSums.of(self._scores(call))
            if sums is None:  # its softmax was skipped
                return
            sums = sums.add_output(call.by_heads(call.output))
            key, self._made = (event.fqn, event.call), None
            if not sums.heads:
                self._skip(event.fqn, "a call of attention in it has no heads")
            elif key not in self._layers:
                self._layers[key] = replace(event, args=(), kwargs={}, output=None), sums
            elif not self._layers[key][1].merge(sums):
                self._skip(event.fqn, "a further call of attention in it has another number of heads")

    def _scores(self, call: AttentionCall) -> Scores:
        """The scores of a fused function."""
        event, arguments = call.event, call.arguments
        one = self._is_of_one_sequence(event)
        if event.operator and event.operator.name == FLEX:
            query, key, _, score_mod, block_mask, scale, _, *buffers = event.args
            of_score, of_mask = (*buffers, (), ())[:2]
            score: Any = lambda scores, *at: score_mod(scores, *at, *of_score)  # noqa: E731
            sees: Any = lambda *at: block_mask[-1](*at, *of_mask)  # noqa: E731
            return Scores(query, key, scale, score_mod=score, mask_mod=sees, one_sequence=one)
        query, key, mask, scale = (
            arguments["query"],
            arguments["key"],
            arguments.get("attn_mask"),
            arguments.get("scale"),
        )
        if mask is not None and type(mask).__name__ == "CausalBias":  # torch.nn.attention.bias: no values
            last, both = mask.variant.name == "LOWER_RIGHT", (query.shape[-2], key.shape[-2])
            mask = torch.ones(both, dtype=torch.bool, device=query.device).tril((both[1] - both[0]) * last)
        require_plain(mask)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        mask = None if mask is None else call.by_heads(mask)
        by_heads, causal = call.by_heads, bool(arguments.get("is_causal"))
        return Scores(by_heads(query), by_heads(key), scale, mask, causal, one_sequence=one)

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
        for fqn, dimension in [*self._calls.across.items()][:1]:
            nothing += f"; {in_words(fqn)} has a softmax over {dimension}: attention's is over the last one, the keys"
        totals = {"verdict": verdict(rows, broken), "heads": len(rows)} if rows or broken else None
        return totals or {"nothing": nothing}

    def skipped(self) -> list[Skipped]:
        """Attention without figures, and modules named after it that ran without any: the outermost of each."""
        self.rows()  # which notes what has no figures
        seen = [fqn for fqn, _ in self._layers] + [skipped.fqn for skipped in self._skipped]
        never, hidden = self._session.never_called(), self._session.not_hooked()
        reasons: dict[str, str] = {}
        for fqn, module in self._session.model.named_modules():
            known = (
                fqn in never or is_within_any(fqn, reasons) or any(one == fqn or is_within(one, fqn) for one in seen)
            )
            if _NAMED.search(type(module).__name__) and not known:
                reasons[fqn] = next((why for n, why in hidden.items() if n == fqn or is_within(fqn, n)), _UNSEEN)
        return [*self._skipped, *(Skipped(fqn, why) for fqn, why in reasons.items())]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        notes = []
        padded = [(int(sums.padding), sums.everything) for _, sums in self._layers.values()]
        left_out, queries = max(padded, default=(0, 0))
        if left_out:
            notes.append(f"{left_out:,} of {counted(queries, 'query', 'queries')} are padding, left out of all figures")
        notes += self._calls.notes()
        if self._drawn:
            notes.append("all tokens were 0 or 1 (--data gives real ones), so heads are not compared")
        return notes if rows else []

    def _skip(self, fqn: str, reason: str) -> None:
        self._skipped[Skipped(fqn, reason)] = None
