"""Layers of experts: how tokens spread over them, as the router's own choices say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hookcli.capabilities.experts.layout import COLUMNS
from hookcli.capabilities.experts.routers import Router, find_router, note_computed, sums_of
from hookcli.capabilities.experts.routing import verdict
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.table import Report, Row, Skipped
from hookcli.table.meta import Meta
from hookcli.table.names import owner_of
from hookcli.tensors import tree
from hookcli.tensors.chunks import cause
from hookcli.tensors.tree import type_text


class ExpertsProbe(Probe):
    """A row per layer of experts, followed by one for each expert.

    A router is a `topk`, `argmax` or `max` that experts follow (`find_router`): the last `topk`, as in grouped routing;
    an `argmax` or `max` that takes other experts than the one before it adds a choice. All that a `topk` takes counts,
    also scores that the layer takes for a loss alone. The probabilities are the last softmax over experts before it,
    or sigmoid divided by its sum, else the softmax of the scores.
    """

    name = "experts"
    columns = COLUMNS
    merges_batches = in_steps = True

    def attach(self, session: HookSession) -> None:
        self.session = session
        self._routers, self._skipped = dict[tuple[str, int], Router](), dict[Skipped, None]()
        self._places: dict[tuple[str, int], Router | None] = {}
        session.functions(self._scored, "softmax", "sigmoid")
        session.functions(self._chosen, "topk", "argmax", "max")
        session.forward(self._returned)

    def _scored(self, event: HookEvent) -> None:
        """Keep the probabilities that a softmax or sigmoid gives experts until some are chosen."""
        x, layer = event.output, type(event.module).__module__.startswith("torch.nn")
        if x.dim() and event.operator and (router := self._router(owner_of(event.fqn) if layer else event.fqn, x)):
            x = x.detach().reshape(-1, router.number).to(torch.promote_types(x.dtype, torch.float32), copy=True)
            router.scores = x / x.sum(-1, keepdim=True) if event.operator.name == "sigmoid" else x

    def _chosen(self, event: HookEvent) -> None:
        """Take a choice, in place of an earlier one that no expert has followed."""
        several = bool(event.operator and event.operator.name == "topk")
        names = ("input", "k", "dim", "largest") if several else ("input", "dim")
        arguments = dict(zip(names, event.args, strict=False)) | dict(event.kwargs)
        scores, dim = arguments["input"], arguments.get("dim", -1 if several else None)
        last = (
            isinstance(dim, int) and scores.dim() and dim in (-1, scores.dim() - 1) and arguments.get("largest", True)
        )
        fit = last and scores.numel() and scores.is_floating_point()
        if not (fit and (router := self._router(event.fqn, scores))):
            return
        if router.pending and router.calls() > router.pending.calls:
            router.settle()
        chosen = event.output if isinstance(event.output, Tensor) else event.output[1]
        before = router.pending
        if not (before and chosen.numel() == scores[..., 0].numel() == len(before.chosen)):
            before = None
        elif before.top_k > 1:
            return  # the largest of the scores, for its value
        try:
            choice = sums_of(scores, chosen, router.scores, before)
        except Exception as error:  # a layout that PyTorch can't reduce is no reason to lose the run
            self._skipped[Skipped(router.fqn, f"a choice can't be summed up ({cause(error, scores)})")] = None
            return
        choice.calls, router.pending, router.chooses = router.calls(), choice, event.fqn

    def _router(self, fqn: str, scores: Tensor) -> Router | None:
        """The router that chooses in this module among as many as there are scores, if there is one."""
        if (key := (fqn, number := scores.shape[-1])) not in self._places:
            router = find_router(self.session, fqn, number) if number > 1 else None
            self._places[key] = router and self._routers.setdefault((router.fqn, number), router)
        return self._places[key]

    def _returned(self, event: HookEvent) -> None:
        """Note what a router's mask leaves to experts; the end of a layer's call settles its choice."""
        for router in self._routers.values():
            if event.fqn == router.fqn:
                self._settle(router)
            elif router.pending and event.fqn == router.chooses:
                note_computed(router.pending, (x for _, x in tree.leaves(event.output)))

    def _settle(self, *routers: Router) -> None:
        left = [router for router in routers if not router.settle()]
        self._skipped |= {Skipped(r.fqn, f"a choice among {r.number}: no experts ran after it"): None for r in left}

    def batch_ended(self) -> None:
        """Settle what is pending: sums of batches add."""
        self._settle(*self._routers.values())

    def rows(self) -> list[Row]:
        """Return a row for each layer, followed by its experts' rows."""
        self.batch_ended()
        known = [router for router in self._routers.values() if router.sums and not router.sums["mixed"].item()]
        return [row for router in known for row in self._rows_of(router)]

    def _rows_of(self, router: Router) -> list[Row]:
        number = router.number
        sums: dict[str, Any] = {name: x.tolist() for name, x in router.sums.items()}
        chosen, computed, tokens, total = sums["chosen"], sums["computed"], sums["tokens"], sum(sums["chosen"])
        seen = all(some <= every for some, every in zip(computed, chosen, strict=True))  # which no NaN is
        own = {"fqn": router.fqn, "type": type_text(self.session.model.get_submodule(router.fqn))}
        entropy, known, lost = sums["entropy"] / tokens, sums["known"], total - sum(computed)
        layer = {"experts": number, "top_k": round(total / tokens), "tokens": round(tokens)}
        layer |= {"dead_experts": chosen.count(0), "load": max(chosen) * number / total}
        layer |= {"margin": sums["margin"] / known if known else None}
        layer |= {"router_entropy": entropy, "router_entropy_share": entropy / math.log(number)}
        layer |= {"dropped": round(lost), "dropped_share": lost / total} if seen else {}
        rows = [Row({**own, **layer})]
        for n, count in enumerate(chosen):
            values = {"expert": n, "tokens": round(count), "load": count * number / total}
            values |= {"dropped": round(count - computed[n])} if seen else {}
            values |= {"router_weight": sums["weight"][n] / count if count else None}
            values |= {"router_probability": sums["probability"][n] / tokens}
            near = sums["near"][n]
            mean = sums["gap"][n] / near if near else math.inf
            spread = sums["squared"][n] / near - mean * mean if near else 0.0
            # How far its scores are below what it takes, in standard deviations; infinite if all are masked.
            values |= {"shortfall": mean / (math.sqrt(max(spread, 0.0)) or math.ulp(0.0))}
            rows.append(Row({**own, **values}))
        return rows

    def report(self, model: str, meta: Meta) -> Report:
        """Return the report; its verdict says so if hookcli drew the tokens without knowing a vocabulary."""
        report = super().report(model, meta)
        drawn = report.rows and "(0 or 1)" in str(meta.get("input"))
        text = "All tokens were 0 or 1 (--data gives real ones): " if drawn else ""
        return replace(report, totals={"verdict": text + verdict(report.rows)})

    def skipped(self) -> list[Skipped]:
        """Return choices that were not counted, and modules that could not be watched."""
        mixed = [router for router in self._routers.values() if router.sums and router.sums["mixed"].item()]
        why = "experts: its argmax or max differ for some of the tokens, and which of them chooses is not known"
        unseen = (Skipped(fqn, reason) for fqn, reason in self.session.not_hooked().items())
        return [*self._skipped, *(Skipped(router.fqn, f"{router.number} {why}") for router in mixed), *unseen]
