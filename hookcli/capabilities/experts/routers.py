"""Finds the experts that a choice is between, and sums up what a router chose; no class of a model is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from hookcli.hooks.module_calls import HookedModule
from hookcli.hooks.session import HookSession
from hookcli.table.names import owner_of
from hookcli.tensors.devices.launch import wide


@dataclass
class Choice:
    """Sums over tokens of the `chosen` experts, `top_k` at a time. `calls`: how often experts had run before it."""

    sums: dict[str, Tensor]
    chosen: Tensor
    probabilities: Tensor
    top_k: int
    calls: int = 0

    def added_to(self, before: Choice) -> Choice:
        """A choice of further experts for the same tokens; sums stay as they are if `before` has all of them."""
        known = (self.chosen == before.chosen).any(-1)
        sums = self.sums | {name: self.sums[name] + before.sums[name] for name in ("chosen", "weight", "parts")}
        sums["mixed"] = before.sums["mixed"] + known.any() * ~known.all()
        sums = {name: torch.where(known.all(), before.sums[name], x) for name, x in sums.items()}
        return replace(self, sums=sums, chosen=torch.cat([before.chosen, self.chosen], -1))


@dataclass(eq=False)
class Router:
    """A layer of experts, which the modules `computes` hold, or itself, and the sums over all tokens.

    `chooses`: the module in which it chose. `scores`: the probabilities of the choice that comes next.
    """

    fqn: str
    number: int
    computes: Sequence[HookedModule]
    chooses: str = ""
    sums: dict[str, Tensor] = field(default_factory=dict)
    pending: Choice | None = None
    scores: Tensor | None = None

    def calls(self) -> int:
        """How often experts have run."""
        return sum(hooked.calls + hooked.earlier for hooked in self.computes)

    def settle(self) -> bool:
        """Count the pending choice, if experts ran after it. Returns False for one that no expert followed."""
        choice, self.pending, self.scores = self.pending, None, None
        followed = choice is None or not self.computes or self.calls() > choice.calls
        if choice and followed:
            self.sums = {name: self.sums[name] + x if self.sums else x for name, x in choice.sums.items()}
        return followed


def find_router(session: HookSession, fqn: str, number: int) -> Router | None:
    """The layer of `number` experts that a choice in this module is between: in the module itself, or beside it."""
    chooser, around = session.model.get_submodule(fqn), dict.fromkeys((fqn, owner_of(fqn)))
    for owner in around:
        inside, depth = session.model.get_submodule(owner), 2 if owner == fqn else 1
        for name, module in inside.named_modules():
            level, itself = name.count(".") + bool(name), f"{owner}.{name}".strip(".") in around
            parts = _experts_in(module, number) if level <= depth else None
            if parts is None or any(chooser in part.modules() for part in parts):
                continue
            experts = parts or ([] if itself else [module])  # its own call does not show that they ran
            hooked = [h for part in experts if (h := session.modules.hooked.get(id(part)))]
            if (hooked or itself) and type(inside).forward is not nn.Module.forward:  # of a list of modules
                return Router(owner, number, hooked)
    return None


def _experts_in(module: nn.Module, number: int) -> list[nn.Module] | None:
    """The experts: modules of one type in a list or mapping; [] if a weight of three dimensions holds them; or None."""
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        parts = [part for part in module.children() if next(part.parameters(), None) is not None]
        kinds = [kind for kind, several in Counter(map(type, parts)).items() if several == number]
        return [part for part in parts if type(part) in kinds[:1]] or None
    layer = type(module).__module__.startswith("torch.nn")  # whose first dimension is of channels
    weights = module.parameters(recurse=False)
    return [] if not layer and any(w.dim() == 3 and w.shape[0] == number for w in weights) else None


@torch.no_grad()
def sums_of(scores: Tensor, chosen: Tensor, probabilities: Tensor | None, before: Choice | None) -> Choice:
    """The sums of the experts `chosen`, of which `scores` have one per token, added to the sums of a choice `before`.

    It stays as it is if it has all of them; of some alone the two are `mixed`. Unless they are known, probabilities are
    the scores, or their softmax.
    """
    number = scores.shape[-1]
    scores = scores.detach().reshape(-1, number).to(torch.promote_types(scores.dtype, torch.float32))
    chosen = chosen.detach().reshape(len(scores), -1)
    p = before.probabilities if before else probabilities
    even = (scores >= 0).all() & ((scores.sum(-1) - 1).abs() < 1e-3).all()  # they are probabilities
    if p is None or p.shape != scores.shape:
        p = torch.where(even, scores, scores.softmax(-1))
    kind = wide(scores.device)
    zeros, k = torch.zeros(number, dtype=kind, device=scores.device), chosen.shape[1]
    best = scores.topk(min(k + 1, number), -1).values
    last = best[:, k - 1 : k]
    gap, margin = torch.where(even, (last / scores).log(), last - scores), last - best[:, k:]
    near, known = gap.isfinite(), margin.isfinite()
    sums = {
        "chosen": zeros.scatter_add(0, chosen.flatten(), torch.ones_like(chosen, dtype=kind).flatten()),
        "weight": zeros.scatter_add(0, chosen.flatten(), p.gather(1, chosen).to(kind).flatten()),
        "probability": p.sum(0, dtype=kind),
        "gap": gap.where(near, 0).sum(0, dtype=kind),
        "squared": gap.where(near, 0).square().sum(0, dtype=kind),
        "near": near.sum(0, dtype=kind),
        "computed": zeros + torch.nan,
        "parts": zeros.new_ones(()),  # choices that were added
        "mixed": zeros.new_zeros(()),
        "tokens": zeros.new_tensor(len(scores)),
        "entropy": torch.special.entr(p).sum(dtype=kind),
        "margin": margin.where(known, 0).sum(dtype=kind),
        "known": known.sum(dtype=kind),
    }
    choice = Choice(sums, chosen, p, k)
    return choice.added_to(before) if before else choice


@torch.no_grad()
def note_computed(choice: Choice, tensors: Iterable[Tensor]) -> None:
    """Take how many choices each expert computes from a mask over tokens and experts (and places), if there is one."""
    tokens, n = choice.probabilities.shape
    for x in tensors:
        place = next((d for d, size in enumerate(x.shape) if size == n and x.shape[:d].numel() % tokens == 0), None)
        if not x.is_floating_point() and place is not None and x.numel() > n != choice.top_k:
            others = [d for d in range(x.dim()) if d != place]
            computed = (x.detach() != 0).sum(others).to(choice.sums["chosen"])
            choice.sums["computed"] = computed.where(choice.sums["parts"] == 1, torch.nan)  # each part may have a mask
