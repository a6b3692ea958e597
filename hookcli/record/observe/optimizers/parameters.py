"""Rows of a model's parameters in a step, and of the groups that they are in.

Of parameters the gradients as the optimizer gets them, and its updates; of groups their settings, and norms over all
parameters in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli.hooks.torch_private.distributed import loss_scale
from hookcli.hooks.torch_private.modules import part_tables
from hookcli.probes.base import Probe
from hookcli.record.observe.naming import PlainNames
from hookcli.record.observe.optimizers.optimizer_steps import Snapshot, parameter_ids, rate_by_hand, update_rows
from hookcli.table import Reason, Report, Row, Skipped
from hookcli.table.columns import names
from hookcli.table.columns.recorded import NORMS_OF_GROUP, SETTINGS
from hookcli.table.merge import gathered
from hookcli.table.stats import figures_of
from hookcli.table.training import ParameterFacts
from hookcli.tensors import tree
from hookcli.tensors.chunks import PendingFigures
from hookcli.tensors.stats import measure, resolve


class ParameterRows:
    """Measures the parameters whose fqn, or whose module's fqn, `matches`."""

    def __init__(self, model: nn.Module, name: PlainNames, matches: Callable[[str], bool], *, hist: bool) -> None:
        self._model = model
        self._types = {fqn: tree.type_text(module) for fqn, module in model.named_modules()}
        self._name = name
        self._matches = matches
        self._walk()
        self._gradients: dict[str, tuple[dict[str, object], PendingFigures]] = {}
        self._hist = hist
        self._unclipped: dict[str, PendingFigures] = {}
        self._scale: Tensor | None = None
        self.watchers: Sequence[Probe] = ()  # which look at updates, too
        self.updates: dict[str, Row] = {}
        """A row per parameter that an optimizer stepped, or that the program updated by hand."""
        self.ruined: dict[str, int] = {}
        """How many values of each parameter the update made NaN or infinite, where it did."""
        self._groups: dict[tuple[int, int], ParameterGroup] = {}  # by optimizer and number
        self._reached: set[str] = set()
        self._stepped: set[int] = set()  # ids of the parameters of optimizers that have stepped

    def note_reached(self) -> None:
        """Note which parameters hold a gradient: their optimizer may not step, or the program may clear it before."""
        self._walk()
        unreached = ((fqn, p) for fqn, p in self._parameters if fqn not in self._reached)
        self._reached |= {fqn for fqn, p in unreached if tree.gradient(p) is not None}

    @property
    def any_reached(self) -> bool:
        """True if some parameter has held a gradient in this step."""
        return bool(self._reached)

    def take_unclipped(self, scale: Tensor | None) -> None:
        """Measure gradients as a backward pass leaves them, unclipped and scaled, but for those that were taken."""
        grads = [(fqn, tree.gradient(p)) for fqn, p in self._parameters if fqn not in self._gradients]
        self._unclipped |= {fqn: measure(grad, hist=self._hist) for fqn, grad in grads if grad is not None}
        self._scale = scale

    def forget_unclipped(self) -> None:
        """Forget what earlier backward passes left: a later one, which nobody measured, has added to it."""
        self._unclipped.clear()

    def left_by_backward(self) -> float | None:
        """The norm of all gradients as the last backward pass left them, without a GradScaler's scale.

        NaN if they were not finite, None if they were not measured. Waits for an accelerator.
        """
        stats = [one for one in resolve(list(self._unclipped.values())) if one.numel]
        if not stats:
            return None
        if any(one.finite < one.numel for one in stats):
            return math.nan
        return math.hypot(*(one.l2 for one in stats)) / (float(self._scale) if self._scale is not None else 1.0)

    def take_groups(self, optimizer: Optimizer) -> None:
        """Note the optimizer's parameter groups as they are now."""
        for number, group in enumerate(optimizer.param_groups):
            settings = {key: _kept(group[key]) for key in _SETTINGS if key in group}
            ids = [id(p) for p in group["params"]]
            self._groups[id(optimizer), number] = ParameterGroup(type(optimizer).__name__, number, settings, ids)

    def take_gradients(self, optimizer: Optimizer | None) -> None:
        """Measure the gradients as they are now: of all parameters, or of those in an optimizer."""
        held = parameter_ids(optimizer) if optimizer else None
        self._stepped |= held or set()
        self.note_reached()
        scale = getattr(optimizer, "grad_scale", None)  # for a fused optimizer, which unscales by itself
        for fqn, parameter in self._parameters:
            grad = tree.gradient(parameter)
            if grad is not None and (held is None or id(parameter) in held):
                values = {
                    "fqn": self._name(fqn),
                    "kind": "parameter",
                    "type": self._types.get(fqn.rpartition(".")[0], ""),
                    "calls": 1,
                    "index": 0,
                    "path": "",
                    "shape": tree.shape_of(grad),
                    "dtype": tree.dtype_text(grad),
                    **tree.shard_of(grad),
                }
                grad = grad if scale is None else grad / scale.to(grad.device)
                # Measured anew: a GradScaler, or a clip through `.data`, changes elements without a new version.
                self._gradients[fqn] = values, measure(grad, hist=self._hist)

    def take_updates(self, snapshot: Snapshot, *, by_hand: bool = False) -> bool:
        """Measure a step's changes; True if there are any. If an optimizer steps by another, the outer one counts."""
        self._walk()
        changes = snapshot.changes(self._parameters)
        whole = [(fqn, change) for fqn, change in changes.items() if not tree.shard_of(change.parameter)]
        for probe, (fqn, change) in product(self.watchers, whole):
            probe.updated(fqn, change.before, change.now)
        rows, ruined = update_rows(self._types, self._name, changes)
        self.ruined |= ruined
        self.updates |= {row.fqn: row for row in rows}
        if by_hand and (rate := rate_by_hand(changes.values())) is not None:
            ids = [id(change.parameter) for change in changes.values()]
            self._groups[0, 0] = ParameterGroup("by hand", 0, {"lr": rate}, ids)
        return any(row["update"] != 0 for row in rows)

    def gradients(self) -> list[tuple[dict[str, Any], PendingFigures]]:
        return list(self._gradients.values())

    def gradient_rows(self) -> list[Row]:
        """A row per gradient. Waits for an accelerator."""
        measured = resolve([pending for _, pending in self._gradients.values()])
        return [Row(values, stats) for (values, _), stats in zip(self._gradients.values(), measured, strict=True)]

    def without_gradient(self, unread: str, optimizers: Iterable[Optimizer]) -> list[Skipped]:
        """Parameters whose gradient no optimizer took, and why; `unread` is the reason why none was read, if so."""
        held = set[int]().union(*map(parameter_ids, optimizers))
        self._walk()
        missing = [(fqn, p) for fqn, p in self._parameters if fqn not in self._gradients]
        skipped = [Skipped(self._name(fqn), self._why_not_taken(fqn, p, held, unread)) for fqn, p in missing]
        # Further names of parameters that have been measured under their first one.
        first = {id(p): self._name(fqn) for fqn, p in self._parameters}
        modules = self._model.named_modules(remove_duplicate=False)
        every = [(f"{owner}.{name}".lstrip("."), p) for owner, m in modules for name, p in part_tables(m)[0].items()]
        names = [(self._name(fqn), first[id(p)]) for fqn, p in every if id(p) in first]
        return skipped + [Skipped(name, f"tied to {of}", kind=Reason.TIED) for name, of in names if name != of]

    def _why_not_taken(self, fqn: str, parameter: nn.Parameter, held: set[int], unread: str) -> str:
        if not parameter.requires_grad:
            return "frozen (requires_grad=False)"
        if unread or fqn not in self._reached:
            return unread or "no gradient reached it"
        if id(parameter) not in held:
            return "got a gradient, but no optimizer has it"
        if id(parameter) not in self._stepped:
            return "got a gradient, but the optimizer did not step"
        return "got a gradient, which the program cleared before the optimizer's step"

    def moved_since(self, began: Report) -> bool:
        """True if a parameter has other figures than in this inventory. Waits for an accelerator."""
        before = {row.fqn: figures_of(row.stats) for row in began.rows if row["kind"] == "parameter" and row.stats}
        named = {self._name(fqn): measure(p) for fqn, p in self._parameters}
        now = zip(named, resolve(list(named.values())), strict=True)
        return any(before.get(fqn) != figures_of(stats) for fqn, stats in now)

    def facts(self, optimizers: Sequence[Optimizer], waiting: Sequence[Optimizer]) -> list[ParameterFacts]:
        """Return the facts of this step on each parameter that is trained. Waits for an accelerator.

        `waiting` are the optimizers that have made no step yet.
        """
        held = set[int]().union(*map(parameter_ids, optimizers))
        rates = {key: _plain(group.settings.get("lr")) for group in self._groups.values() for key in group.parameters}
        waits = {key: type(optimizer).__name__ for optimizer in waiting for key in parameter_ids(optimizer)}
        for optimizer in optimizers:
            if optimizer not in waiting:
                waits |= dict.fromkeys(parameter_ids(optimizer), "")
        facts, of = [], optimizers_of(optimizers)
        for fqn, p in self._parameters:
            if not p.requires_grad:
                continue
            name, rate = self._name(fqn), rates.get(id(p))
            update = self.updates.get(name)
            rests = update is not None and update["update"] == 0
            copied = rests and any(_keeps_more_bits(optimizer, p) for optimizer in optimizers)
            known_rate = rate if isinstance(rate, float) else None
            reached, waited = fqn in self._reached, waits.get(id(p), "")
            facts.append(ParameterFacts(name, reached, id(p) in held, known_rate, copied, waited, of.get(id(p), "")))
        return facts

    def group_rows(self, losses: Mapping[int, float] | None = None) -> list[Row]:
        """A row per group that stepped, the first of each optimizer with its loss. Waits for an accelerator."""
        unclipped = dict(zip(self._unclipped, resolve(list(self._unclipped.values())), strict=True))
        gradients = dict(zip(self._gradients, self.gradient_rows(), strict=True))
        scale = float(self._scale) if self._scale is not None else 1.0
        figures: dict[int, dict[str, object]] = {}
        for fqn, parameter in self._parameters:
            of_parameter = figures[id(parameter)] = {"numel": parameter.numel()}
            if fqn in gradients and gradients[fqn]["numel"]:  # of no elements, as in a rank's shard, the norm is NaN
                of_parameter["param_grad"] = gradients[fqn]["l2"]
                of_parameter["unclipped_grad"] = unclipped[fqn].l2 / scale if fqn in unclipped else None
            if update := self.updates.get(self._name(fqn)):
                of_parameter |= {key: update[key] for key in ("weight", "update")}
        rows = []
        optimizers = set[int]()
        for (optimizer, _), group in self._groups.items():
            if row := group.row(figures):
                loss = losses.get(optimizer) if losses and optimizer not in optimizers else None
                rows.append(Row({**row.values, "loss": loss}) if losses else row)
                optimizers.add(optimizer)
        return rows

    def without_optimizer(self, optimizers: Iterable[Optimizer]) -> list[Skipped]:
        """Parameters that none of the optimizers holds, and that the program did not update by hand."""
        held = set[int]().union(*map(parameter_ids, optimizers))
        left = [self._name(fqn) for fqn, p in self._parameters if id(p) not in held]
        return [Skipped(name, "not in any optimizer that stepped") for name in left if name not in self.updates]

    def _walk(self) -> None:
        """Find the parameters anew: a forward, or the program, may have added or replaced some."""
        named = self._model.named_parameters()
        self._parameters = [(fqn, p) for fqn, p in named if self._matches(fqn) or self._matches(fqn.rpartition(".")[0])]


def _keeps_more_bits(optimizer: Optimizer, parameter: nn.Parameter) -> bool:
    """True if an optimizer keeps what a parameter is rounded from: a wider copy, or what rounding has left out."""
    for name, kept in optimizer.state.get(parameter, {}).items():
        if any(word in str(name).lower() for word in _LEFT_OUT):
            return True
        if not isinstance(kept, Tensor) or kept.shape != parameter.shape or not kept.is_floating_point():
            continue
        wider = kept.element_size() > parameter.element_size()
        if wider and torch.equal(tree.local(kept).to(parameter.dtype), tree.local(parameter)):
            return True
    return False


_LEFT_OUT = ("kahan", "compensation", "master")  # parts of names of such tensors
_SKIPPED = "the GradScaler skipped a step: gradients overflowed"


class GradScaling:
    """The scale of each backward pass in a step: it may change between two passes, and a pass may have none."""

    def __init__(self) -> None:
        self._of_rows: list[Tensor | None] = []
        self._overflows: list[Tensor] = []
        self._skipped = False
        self.last: Tensor | None = None
        """The scale of the last pass; None if it had none."""

    @property
    def used(self) -> bool:
        """True if a loss was scaled; the scaler then handles overflows."""
        return self._skipped or any(scale is not None for scale in self._of_rows)

    def backward_over(self, rows: int, scaler: Any) -> None:
        """Note the scale of a pass that is over, with `rows` gradients so far; `scaler` is None for a plain loss."""
        self.last = loss_scale(scaler).clone() if scaler is not None else None  # get_scale() would wait for a GPU
        self._of_rows += [self.last] * (rows - len(self._of_rows))

    def step_begins(self, optimizer: Optimizer) -> None:
        """Note whether a step that begins has an overflow: a fused optimizer then skips it by itself."""
        if (overflow := getattr(optimizer, "found_inf", None)) is not None:
            self._overflows.append(overflow.detach().clone())

    def step_skipped(self) -> None:
        self._skipped = True

    @property
    def skipped(self) -> bool:
        """True if gradients overflowed, so that the optimizer did not step. Waits for an accelerator."""
        return self._skipped or any(float(overflow) for overflow in self._overflows)

    def notes(self) -> list[str]:
        """Notes on skipped steps and scales. Waits for an accelerator."""
        skipped = [_SKIPPED] if self.skipped else []
        scales = dict.fromkeys(f"{float(scale):g}" for scale in self._of_rows if scale is not None)
        divided = f"statistics of gradients of outputs are divided by the GradScaler's scale, {', '.join(scales)}"
        return skipped + ([divided] if scales else [])

    def unscale(self, rows: Sequence[Row]) -> list[Row]:
        scales = [*self._of_rows, *[None] * (len(rows) - len(self._of_rows))]
        return [
            row if scale is None or row.stats is None else replace(row, stats=row.stats.scaled(1 / float(scale)))
            for row, scale in zip(rows, scales, strict=True)
        ]


_SETTINGS = names(SETTINGS)


@dataclass(frozen=True)
class ParameterGroup:
    """A parameter group as an optimizer's step began. Settings that are tensors are copied, not read."""

    optimizer: str
    number: int
    settings: Mapping[str, object]
    parameters: Sequence[int]
    """`id` of each parameter."""

    def row(self, figures: Mapping[int, Mapping[str, Any]]) -> Row | None:
        """The group's row, if it holds any of the `figures` parameters; its norms are over these.

        `figures` has for each parameter, by id: its `numel`, and where measured its norms `unclipped_grad`,
        `param_grad`, `weight` and `update`.
        """
        mine = [figures[key] for key in self.parameters if key in figures]
        if not mine:
            return None
        return Row(
            {
                "optimizer": self.optimizer,
                "group": self.number,
                "parameters": sum(values["numel"] for values in mine),
                **{key: _plain(self.settings.get(key)) for key in _SETTINGS},
                **gathered(map(Row, mine), NORMS_OF_GROUP),
            }
        )


def _kept(setting: object) -> object:
    if isinstance(setting, (list, tuple)):
        return [_kept(item) for item in setting]
    return setting.detach().clone() if isinstance(setting, Tensor) else setting


def _plain(setting: object) -> object:
    """The setting as a number or a list of numbers; None for anything else. Waits for an accelerator."""
    if isinstance(setting, list):
        numbers = [_plain(item) for item in setting]
        return None if None in numbers else numbers
    if isinstance(setting, Tensor):
        return float(setting) if setting.numel() == 1 else None
    return float(setting) if isinstance(setting, (int, float)) else None


def optimizers_of(optimizers: Sequence[Optimizer]) -> dict[int, str]:
    """The name of the optimizer that has each parameter, by id, with a number if it is not the first of its name."""
    names = [type(optimizer).__name__ for optimizer in optimizers]
    found: dict[int, str] = {}
    for number, optimizer in enumerate(optimizers):
        same = names[:number].count(names[number])
        found |= dict.fromkeys(parameter_ids(optimizer), f"{names[number]} #{same + 1}" if same else names[number])
    return found
