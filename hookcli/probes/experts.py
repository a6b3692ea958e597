"""Layers of experts: how tokens spread over them, as the router's own choices say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import version_of
from hookcli.probes.base import Probe
from hookcli.probes.shared.routers import Router, find_router, note_computed, sums_of
from hookcli.table import Report, Row, Skipped
from hookcli.table.columns.layouts import EXPERTS
from hookcli.table.meta import Meta
from hookcli.table.names import owner_of
from hookcli.table.routing import verdict
from hookcli.tensors import tree
from hookcli.tensors.chunks import cause
from hookcli.tensors.tree import type_text


class ExpertsProbe(Probe):
    """A row per layer of experts, followed by one for each expert.

    A router is a `topk` or `argmax` that experts follow (`find_router`): the last one, as in grouped routing; `argmax`
    of other scores adds a choice. Its probabilities are the last softmax over experts before it, or sigmoid divided by
    its sum, else the softmax of the scores.
    """

    name = "experts"
    columns = EXPERTS
    merges_batches = True
    in_steps = True

    def attach(self, session: HookSession) -> None:
        self.session = session
        self._routers: dict[tuple[str, int], Router] = {}
        self._places: dict[tuple[str, int], Router | None] = {}
        self._skipped: dict[Skipped, None] = {}
        session.functions(self._scored, "softmax", "sigmoid")
        session.functions(self._chosen, "topk", "argmax")
        session.forward(self._returned)

    def _scored(self, event: HookEvent) -> None:
        """Keep the probabilities that a softmax or sigmoid gives experts until some are chosen."""
        x, layer = event.output, type(event.module).__module__.startswith("torch.nn")
        router = self._router(owner_of(event.fqn) if layer else event.fqn, x.shape[-1]) if x.dim() else None
        if router and event.operator:
            x = x.detach().reshape(-1, router.number).to(torch.promote_types(x.dtype, torch.float32), copy=True)
            router.scores = x / x.sum(-1, keepdim=True) if event.operator.name == "sigmoid" else x

    def _chosen(self, event: HookEvent) -> None:
        """Take a choice, in place of an earlier one that no expert has followed."""
        single = bool(event.operator and event.operator.name == "argmax")
        names = ("input", "dim") if single else ("input", "k", "dim", "largest")
        given = dict(zip(names, event.args, strict=False)) | dict(event.kwargs)
        scores, dim = given["input"], given.get("dim", None if single else -1)
        if not scores.numel() or dim not in (-1, scores.dim() - 1) or not given.get("largest", True):
            return
        router = self._router(event.fqn, scores.shape[-1]) if scores.dim() else None
        if router is None:
            return
        if router.pending and router.calls() > router.pending.calls:
            router.settle()
        before = router.pending if single and router.pending and router.pending.given else None
        made_of = (id(scores), version_of(scores), scores) if single else ()
        if before and before.given[:2] == made_of[:2]:
            return  # chosen again, for its value
        try:
            choice = sums_of(scores, event.output if single else event.output[1], router.scores, before)
        except Exception as error:  # a layout that PyTorch can't reduce is no reason to lose the run
            self._skipped[Skipped(router.fqn, f"a choice can't be summed up ({cause(error, scores)})")] = None
            return
        choice.calls, choice.given = router.calls(), made_of
        router.pending, router.chooses = choice, event.fqn

    def _router(self, fqn: str, number: int) -> Router | None:
        """The router that chooses in this module among so many, if there is one."""
        if (key := (fqn, number)) not in self._places:
            router = find_router(self.session, fqn, number) if number > 1 else None
            self._places[key] = router and self._routers.setdefault((router.fqn, number), router)
        return self._places[key]

    def _returned(self, event: HookEvent) -> None:
        """Note what a router's mask leaves to experts; the end of a layer's call settles its choice."""
        for router in self._routers.values():
            choice = router.pending
            if event.fqn == router.fqn:
                self._settle(router)
            elif choice and event.fqn == router.chooses and not (choice.given and choice.top_k > 1):
                note_computed(choice, (x for _, x in tree.leaves(event.output)))  # of several, each may have a mask

    def _settle(self, router: Router) -> None:
        if not router.settle():
            self._skipped[Skipped(router.fqn, f"a choice among {router.number}: no experts ran after it")] = None

    def batch_ended(self) -> None:
        """Settle what is pending: sums of batches add."""
        for router in self._routers.values():
            self._settle(router)

    def rows(self) -> list[Row]:
        """Return a row for each layer, followed by those of its experts."""
        self.batch_ended()
        return [row for router in self._routers.values() if router.sums for row in self._rows_of(router)]

    def _rows_of(self, router: Router) -> list[Row]:
        number = router.number
        sums: dict[str, Any] = {name: x.tolist() for name, x in router.sums.items()}
        chosen, tokens, total = sums["chosen"], sums["tokens"], sum(sums["chosen"])
        seen = all(some <= every for some, every in zip(sums["computed"], chosen, strict=True))  # which no NaN is
        computed = sums["computed"] if seen else None
        own = {"fqn": router.fqn, "type": type_text(self.session.model.get_submodule(router.fqn))}
        entropy, known = sums["entropy"] / tokens, sums["known"]
        layer = {"experts": number, "top_k": round(total / tokens), "tokens": round(tokens)}
        layer |= {"dead_experts": chosen.count(0), "load": max(chosen) * number / total}
        layer |= {"margin": sums["margin"] / known if known else None}
        layer |= {"router_entropy": entropy, "router_entropy_share": entropy / math.log(number)}
        if computed:
            layer |= {"dropped": round(total - sum(computed)), "dropped_share": 1 - sum(computed) / total}
        rows = [Row({**own, **layer})]
        for n, count in enumerate(chosen):
            values = {"expert": n, "tokens": round(count), "load": count * number / total}
            values |= {"dropped": round(count - computed[n])} if computed else {}
            values |= {"router_weight": sums["weight"][n] / count if count else None}
            values |= {"router_probability": sums["probability"][n] / tokens}
            values |= {"shortfall": _shortfall(sums["gap"][n], sums["squared"][n], sums["near"][n])}
            rows.append(Row({**own, **values}))
        return rows

    def report(self, model: str, meta: Meta) -> Report:
        """Return the report; its verdict says so if hookcli drew the tokens without knowing a vocabulary."""
        report = super().report(model, meta)
        text = f"All tokens were 0 or 1 (--data gives real ones): {report.totals['verdict']}"
        drawn = report.rows and "(0 or 1)" in str(meta.get("input"))
        return replace(report, totals={"verdict": text}) if drawn else report

    def totals(self) -> Mapping[str, object]:
        """Return the verdict."""
        return {"verdict": verdict(self.rows())}

    def skipped(self) -> list[Skipped]:
        """Return choices that were not counted, and modules that could not be watched."""
        return [*self._skipped, *(Skipped(fqn, reason) for fqn, reason in self.session.not_hooked().items())]


def _shortfall(gap: float, squared: float, number: float) -> float:
    """By how many standard deviations an expert's scores are below what it takes; infinite if they are all masked."""
    mean = gap / number if number else math.inf
    spread = squared / number - mean * mean if number else 0.0
    return mean / (math.sqrt(max(spread, 0.0)) or math.ulp(0.0))
