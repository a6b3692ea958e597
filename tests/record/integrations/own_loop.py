"""What a record must say: the same training by a loop of one's own, its tensors reduced by PyTorch in float64."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from support import assert_stats, float64_stats, hooks_on
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from hookcli.record.file.reading import read_record
from hookcli.record.file.record_lines import RecordedStep
from hookcli.table import Report
from hookcli.tensors import tree

Place = tuple[str, str]
"""A module's fqn, and a path in what it returns."""


@dataclass
class Step:
    """One step of an optimizer; lists are over the forwards in it."""

    losses: list[float] = field(default_factory=list)
    outputs: dict[Place, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    output_grads: dict[Place, list[Tensor]] = field(default_factory=dict)
    grads: dict[str, Tensor] = field(default_factory=dict)
    before: dict[str, Tensor] = field(default_factory=dict)
    after: dict[str, Tensor] = field(default_factory=dict)


def train(
    model: nn.Module,
    optimizer: Optimizer,
    steps: Iterable[list[Any]],
    loss: Callable[[nn.Module, Any], Tensor],
    before_step: Callable[[], object] = lambda: None,
) -> list[Step]:
    """Each step has batches whose losses are differentiated one after the other."""
    seen = []
    for batches in steps:
        step = Step()
        with _looked_at(model, step):
            for batch in batches:
                value = loss(model, batch)
                step.losses.append(value.item())
                value.backward()
        before_step()
        step.grads = {fqn: p.grad.clone() for fqn, p in model.named_parameters() if p.grad is not None}
        step.before = _copy(model)
        optimizer.step()
        step.after = _copy(model)
        optimizer.zero_grad()
        seen.append(step)
    return seen


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {fqn: p.detach().clone() for fqn, p in model.named_parameters()}


@contextmanager
def _looked_at(model: nn.Module, step: Step) -> Iterator[None]:
    """Keeps what modules return, and the gradient of each of these tensors."""
    grads: dict[Place, list[Tensor]] = defaultdict(list)

    def keep(fqn: str) -> Callable[..., Any]:
        def look(module: nn.Module, args: Any, output: Any) -> None:
            for path, x in tree.leaves(output):
                step.outputs[fqn, path].append(x.detach().clone())
                if x.requires_grad:
                    x.register_hook(lambda grad, place=(fqn, path): grads[place].append(grad.clone()))

        return look

    handles = [module.register_forward_hook(keep(fqn)) for fqn, module in model.named_modules()]
    yield
    for handle in handles:
        handle.remove()
    step.output_grads = dict(grads)


def assert_recorded(recorded: RecordedStep, step: Step) -> None:
    """The record tells all of this step, and nothing else."""
    assert recorded.losses == pytest.approx(step.losses, rel=1e-6)
    reports = {report.probe: report for report in recorded.reports}
    assert set(reports) == {"activations", "grads", "updates", "optimizer", "time"}
    _assert_rows(reports["activations"], step.outputs)
    _assert_rows(reports["grads"], step.output_grads, "output")
    _assert_rows(reports["grads"], {(fqn, ""): [grad] for fqn, grad in step.grads.items()}, "parameter")
    _assert_updates(reports["updates"], step)


def _assert_rows(report: Report, expected: dict[Place, list[Tensor]], kind: str | None = None) -> None:
    found = {(row.fqn, row["path"]): row for row in report.rows if row.get("kind") == kind}
    assert found.keys() == expected.keys()
    for place, tensors in expected.items():
        assert found[place]["calls"] == len(tensors)
        assert_stats(found[place].stats, float64_stats(torch.cat([x.reshape(-1) for x in tensors])))


def _assert_updates(report: Report, step: Step) -> None:
    assert {row.fqn for row in report.rows} == step.before.keys()
    for row in report.rows:
        before, after = step.before[row.fqn].double(), step.after[row.fqn].double()
        weight, update = before.norm().item(), (after - before).norm().item()
        assert row["weight"] == pytest.approx(weight, rel=1e-6)
        assert row["update"] == pytest.approx(update, rel=1e-6)
        if weight:
            assert row["ratio"] == pytest.approx(update / weight, rel=1e-6)
        else:
            assert math.isinf(row["ratio"]) if update else math.isnan(row["ratio"])


def recorded_steps(path: Path, model: str, phase: str = "train") -> dict[int, RecordedStep]:
    """Those of a record, by step; of several without grad after one step the first."""
    record = read_record(path)
    found: dict[int, RecordedStep] = {}
    for recorded in record.steps(entry for entry in record.entries if entry.key == (model, phase)):
        found.setdefault(recorded.step, recorded)
    return found


_WRAPPED = (
    (torch.autograd, "backward"),
    (Optimizer, "add_param_group"),
    (nn.Module, "compile"),
    (torch.amp.GradScaler, "scale"),
    (torch.amp.GradScaler, "step"),
)


@contextmanager
def nothing_left(model: nn.Module) -> Iterator[None]:
    """Assert that no hook and no wrapped function of PyTorch's stays behind."""
    before = hooks_on(model), [getattr(*place) for place in _WRAPPED]
    optimizers = len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)
    try:
        yield
    finally:
        assert (hooks_on(model), [getattr(*place) for place in _WRAPPED]) == before
        assert (len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)) == optimizers
