"""The changes of a sweep, one for each run: to a module's output, a head, an expert or a layer's weights."""

from __future__ import annotations

import glob
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from hookcli.capabilities.sweep import parts
from hookcli.capabilities.sweep.heads import HeadChange, SeenHeads
from hookcli.engine.changed_runs import ChangedWeight
from hookcli.hooks.edits.base import Edit, parse_edit
from hookcli.hooks.events import HookEvent
from hookcli.hooks.flow_calls import FlowCall, FlowCalls
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import version_of
from hookcli.probes.shared.layer_rows import laid_out_as, rounded_weight
from hookcli.probes.shared.unmeasured import never_called
from hookcli.sources.losses import floating
from hookcli.table import Skipped
from hookcli.table.names import around, in_words
from hookcli.table.tree import Tree
from hookcli.tensors import tree
from hookcli.tensors.tree import type_text

MOST = 100  # runs of a sweep over modules, unless a depth is asked for
_DONE = {"zero": "zeroed", "mean": "set to its mean", "ones": "set to 1", "from": "patched"}  # nothing is left of it


@dataclass(frozen=True)
class Sweep:
    """A change to each of the "modules", "heads" or "experts" in turn, down to a `depth` (None: at most MOST)."""

    operation: str = "zero"
    of: str = "modules"
    quantize: str | None = None
    depth: float | None = None
    seed: int = 0
    count: int = 0
    """The number of heads of attention that doesn't say it; 0 for none."""

    def edit(self, fqn: str, **changes: Any) -> Edit:
        """The edit of a module's output. Raises UsageError for an operation that can't be read."""
        edit = parse_edit(f"{fqn}:output={self.operation}", self.seed)
        return replace(edit, pattern=glob.escape(fqn), **changes)

    @property
    def done(self) -> str:
        """The change in a word or two: zeroed."""
        word = _DONE.get(self.operation.partition("(")[0].strip(), f"edited by {self.operation}")
        return f"rounded to {self.quantize}" if self.quantize else word


@dataclass(frozen=True)
class Trial:
    """One run's change at a place, by `edits`, changed `weights` or a `head`; `part`: the number of head or expert."""

    fqn: str
    type: str
    edits: Sequence[Edit] = ()
    weights: Sequence[ChangedWeight] = ()
    head: HeadChange | None = None
    part: Mapping[str, int] = field(default_factory=dict)
    bottleneck: bool = False

    @property
    def name(self) -> str:
        """The place in words: head 3 of h.5.attn; an expert that is a module has its number in its name."""
        last = self.fqn.rpartition(".")[2]
        named = ("expert", last)  # another word
        numbers = (f"{what} {n} of " for what, n in self.part.items() if (what, str(n)) != named)
        return "".join(numbers) + in_words(self.fqn)


class SeenModules:
    """Notes on each module that a session's run calls; no tensor is kept."""

    def __init__(self, session: HookSession, sweep: Sweep) -> None:
        self._session, self.flow = session, FlowCalls(session)
        self.heads = SeenHeads(session, sweep.count) if sweep.of == "heads" else None
        self._given: dict[tuple[str, int], dict[int, int]] = {}
        self.makers: dict[str, set[int | None]] = defaultdict(set)
        self._own = set[str]()
        session.forward_pre(self._enter)
        session.forward(self._leave)

    def _enter(self, event: HookEvent) -> None:
        arguments = tree.arguments(event.args, event.kwargs)
        self._given[event.fqn, event.call] = {id(x): version_of(x) for _, x in arguments}

    def _leave(self, event: HookEvent) -> None:
        versions, tensors = self._given.pop((event.fqn, event.call)), floating(event.output)
        self.makers[event.fqn].update(map(self.flow.origins.of, tensors))
        if any(x.is_inference() or versions.get(id(x)) != version_of(x) for x in tensors):
            self._own.add(event.fqn)

    def unswept(self, fqns: Mapping[str, object]) -> dict[str, Skipped]:
        """The modules among these whose output is not worth a run, each with the reason."""
        uncalled = {item.fqn: item for item in never_called(self._session) if item.fqn in fqns}
        why = ("returns no floating-point tensor", "passes on what it receives")
        left = [fqn for fqn in fqns if fqn in self.makers and fqn not in self._own]
        return uncalled | {fqn: Skipped(fqn, why[bool(self.makers[fqn])]) for fqn in left}


class _Ways:
    """The calls on the ways from the first input to one output, and the `cuts`: those that no way goes around."""

    def __init__(self, calls: Sequence[FlowCall], path: str) -> None:
        source = next((n for n, call in enumerate(calls) if call.kind == "input"), -1)
        sink = next((n for n, call in enumerate(calls) if call.kind == "output" and call.what == path), -1)
        reached, self.needed = {source}, {sink}
        for n, call in enumerate(calls):
            reached |= set() if reached.isdisjoint(call.inputs) else {n}
        for n in range(sink, -1, -1):
            self.needed |= {*calls[n].inputs} if n in self.needed else set()
        ways = sorted(reached & self.needed)
        last = {n: m for m in ways for n in calls[m].inputs}
        farthest = accumulate((last.get(n, n) for n in ways), max, initial=source)
        self.cuts = {n for n, far in zip(ways, farthest, strict=False) if far <= n}  # no edge leads past one


def _is_bottleneck(made: Collection[int | None], ways: Sequence[_Ways]) -> bool:
    """True if each output that depends on what a module made depends on nothing else of the input."""
    depend = [each for each in ways if not each.needed.isdisjoint(made)]
    return bool(depend) and not any(each.cuts.isdisjoint(made) for each in depend)


Found = tuple[list[Trial], list[Skipped]]


def trials(
    sweep: Sweep, model: nn.Module, seen: SeenModules, paths: Collection[str], tree: Tree, select: Any = None
) -> Found:
    """The runs to make, in the model's order, and what is not swept, with reasons.

    `paths`: of the outputs that the figure which ranks is made of.
    """
    whole = sweep.of == "modules" and not sweep.quantize  # of the model itself nothing would be left
    wanted = {n: m for n, m in model.named_modules() if (n or not whole) and (select is None or select(n, m))}
    if whole:
        return _modules(sweep, wanted, seen, paths, tree)
    near = {n: m for n, m in wanted.items() if tree[n].level <= (sweep.depth or math.inf)}
    if sweep.of == "modules":
        return _layers(sweep, model, near)
    return (_heads if sweep.of == "heads" else _experts)(sweep, model, near, seen)


def _modules(
    sweep: Sweep, wanted: Mapping[str, nn.Module], seen: SeenModules, paths: Collection[str], tree: Tree
) -> Found:
    """A run for each module down to the depth that was asked for, else to one with at most MOST modules."""
    unswept = seen.unswept(wanted)
    depths = {n: tree[n].level for n in wanted if n not in unswept and n in seen.makers}
    few = (d for d in sorted(depths.values(), reverse=True) if sum(n <= d for n in depths.values()) <= MOST)
    depth = sweep.depth or next(few, 1)
    ways = [_Ways(seen.flow.calls, path) for path in paths if sweep.done in _DONE.values()]
    trials = [
        Trial(n, type_text(wanted[n]), [sweep.edit(n)], bottleneck=_is_bottleneck(seen.makers[n], ways))
        for n, own in depths.items()
        if own <= depth
    ]
    deeper = f"deeper than {depth:g}; --depth all sweeps {len(depths)} modules"
    return trials, [*unswept.values(), *(Skipped(n, deeper) for n, own in depths.items() if own > depth)]


def _heads(sweep: Sweep, model: nn.Module, wanted: Mapping[str, nn.Module], seen: SeenModules) -> Found:
    """A run for each head that attention is seen to have, and each of further modules that are named after attention.

    The change is to what the output projection receives, if it is called and has columns for these heads, else to what
    the functions of attention return. Without these it is to the columns of the projection's weight.
    """
    assert seen.heads
    trials, skipped = list[Trial](), dict[str, Skipped]()
    by_module = {fqn: [*heads] for fqn, heads in groupby(parts.heads(model), key=attrgetter("fqn"))}
    for fqn, number in seen.heads.layers.items():
        if fqn in wanted:
            heads = projected(fqn, by_module, seen.heads.layers)
            trials += by_attention(sweep, (fqn, type_text(wanted[fqn]), number), heads, seen, skipped)
    for fqn, why in seen.heads.unfollowed.items():
        if fqn in wanted and fqn not in by_module:
            skipped[fqn] = Skipped(fqn, f"its heads can't be followed: {why}")
    further = wanted.keys() - {name for fqn in seen.heads.layers for name in (fqn, *around(fqn))}
    for fqn, heads in by_module.items():
        trials += by_projection(sweep, heads, seen, skipped) if fqn in further else []
    return trials, [*skipped.values()]


def projected(
    fqn: str, by_module: Mapping[str, Sequence[parts.Head]], calling: Collection[str]
) -> Sequence[parts.Head]:
    """The heads of the output projection of the module `fqn`, one of those `calling` attention; none if it has none.

    The projection may belong to a module around it, unless that is around several calls, or is the whole model: its
    layer of such a name is something else.
    """
    owners = [name for name in (fqn, *filter(None, around(fqn))) if name in by_module]
    if len(owners) != 1 or any(owners[0] in around(other) for other in calling if other != fqn):
        return ()
    return by_module[owners[0]]


def by_attention(
    sweep: Sweep,
    layer: tuple[str, str, int],
    heads: Sequence[parts.Head],
    seen: SeenModules,
    skipped: dict[str, Skipped],
) -> Iterator[Trial]:
    """A run for each head of attention that was seen: of the module of this name and type, and number of heads."""
    fqn, kind, number = layer
    if len(heads) == number and heads[0].projection in seen.makers and heads[0].part.stop:
        for n, head in enumerate(heads):
            edit = sweep.edit(head.projection, what="input", part=head.part)
            yield Trial(fqn, kind, [edit], part={"head": n})
    elif sweep.operation.partition("(")[0].strip() == "from":
        skipped[fqn] = Skipped(fqn, "no output projection with its heads is called, so no dump has them")
    else:
        for n in range(number):
            change = HeadChange(fqn, n, number, sweep.edit(fqn))
            yield Trial(fqn, kind, head=change, part={"head": n})


def by_projection(
    sweep: Sweep, heads: Sequence[parts.Head], seen: SeenModules, skipped: dict[str, Skipped]
) -> Iterator[Trial]:
    """A run for each head of a module in which no attention was seen, by its output projection."""
    for head in heads:
        edits: Sequence[Edit] = ()
        weights: Sequence[ChangedWeight] = [(head.weight, (slice(None), head.part), torch.zeros_like)]
        if head.projection in seen.makers:
            edits, weights = [sweep.edit(head.projection, what="input", part=head.part)], ()
        elif sweep.operation != "zero":
            why = f"{head.projection} is not called, so its heads can only be zeroed"
            skipped[head.fqn] = Skipped(head.fqn, why)
        if not head.part.stop:
            why = f"its heads can't share the columns of {head.projection} evenly: {head.weight.shape[-1]}"
            skipped[head.fqn] = Skipped(head.fqn, why)
        if head.fqn not in skipped:
            yield Trial(head.fqn, head.type, edits, weights, part={"head": head.number})


def _experts(sweep: Sweep, model: nn.Module, wanted: Mapping[str, nn.Module], seen: SeenModules) -> Found:
    """A run for each expert: on what it returns, or where all are one weight, on its part of that."""
    trials, known = [], [expert for expert in parts.experts(model) if expert[0] in wanted]
    skipped = seen.unswept({fqn: module for fqn, module, _, fused in known if not fused})
    for fqn, module, number, fused in known:
        if fused and not sweep.quantize and sweep.operation != "zero":
            skipped[fqn] = Skipped(fqn, "its experts are parts of one weight: they can only be zeroed or rounded")
        if fqn not in skipped:
            change: Any = {"edits": [sweep.edit(fqn)]}
            if fused:
                change = {"weights": [*_changes(sweep, module, fused, number)]}  # another word
            elif sweep.quantize:
                every = ((one, parts.matrices(one)) for one in module.modules())
                change = {"weights": [w for each in every for w in _changes(sweep, *each)]}  # another word
            trials.append(Trial(fqn, type_text(module), part={"expert": number}, **change))
    return trials, [*skipped.values()]


def _changes(sweep: Sweep, module: nn.Module, weights: Any, index: Any = ...) -> Iterator[ChangedWeight]:
    """The changes of a module's weights, or of one expert's part of them: zeroed, or but for biases rounded."""
    for w in weights:
        if not sweep.quantize or w.data[index].dim() > 1:
            rounds = partial(rounded_weight, module=module, form=sweep.quantize) if sweep.quantize else torch.zeros_like
            yield w, index, rounds


def _layers(sweep: Sweep, model: nn.Module, wanted: Mapping[str, nn.Module]) -> Found:
    """A run for each module with its own weights; of those that share one, only for the first."""
    trials, skipped, owners = [], [], dict[int, str]()
    modules = dict(model.named_modules())
    for fqn, module in wanted.items():
        held = {w: owners.setdefault(id(w), fqn) for w in parts.matrices(module)}
        weights = [*_changes(sweep, laid_out_as(modules, fqn), [w for w in held if held[w] == fqn])]
        trials += [Trial(fqn, type_text(module), weights=weights)] if weights else []
        tied = (owner for owner in held.values() if owner != fqn)
        skipped += [Skipped(fqn, f"has the weight of {owner}, which was swept") for owner in tied]
    return trials, skipped
