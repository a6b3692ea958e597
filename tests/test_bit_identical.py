"""No observer effect: random models train to the same bits, whatever looks at them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import PROBES, examples, make, models
from support import equal, hooks_on, swept
from torch import Tensor, nn

import hookcli


def train(model: nn.Module, x: Tensor, looked_at: Callable[[Callable[[], None]], None]) -> list[Any]:
    """Three steps; everything that could show a difference."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen: list[Any] = []

    def step() -> None:
        optimizer.zero_grad()
        y = model(x)
        y.pow(2).mean().backward()
        seen.append((y.detach().clone(), [None if p.grad is None else p.grad.clone() for p in model.parameters()]))
        optimizer.step()

    torch.manual_seed(1)
    for _ in range(3):
        looked_at(step)
    seen.append([p.detach().clone() for p in model.parameters()])
    return [*seen, [b.clone() for b in model.buffers()], torch.get_rng_state()]


def plainly(step: Callable[[], None]) -> None:
    step()


SEARCHING = ("grads of inputs", "graph", "trace")  # for autograd's nodes, where no hook tells of them


@pytest.mark.parametrize("probe", sorted(PROBES))
@examples(2)
@given(
    names=models, shared=st.booleans(), seed=st.integers(0, 99), dtype=st.sampled_from([torch.float32, torch.bfloat16])
)
def test_a_probe_around_each_step_changes_no_bit(
    probe: str, names: list[str], shared: bool, seed: int, dtype: torch.dtype
) -> None:
    if probe in SEARCHING and not hasattr(torch.autograd.graph, "node_creation_hook"):
        names = [name for name in names if name != "stale"]  # the search for nodes makes the view's earlier
    model, x = make(names, shared, seed, dtype)
    expected = train(copy.deepcopy(model), x, plainly)

    def watched(step: Callable[[], None]) -> None:
        with hookcli.watch(model, [PROBES[probe]()]):
            step()

    assert equal(expected, train(model, x, watched))
    assert sum(hooks_on(model).values()) == 0


@pytest.mark.parametrize("all_of_it", [swept(False), True])
@examples(3)
@given(
    names=models, shared=st.booleans(), seed=st.integers(0, 99), dtype=st.sampled_from([torch.float32, torch.bfloat16])
)
def test_a_record_of_every_step_changes_no_bit(
    tmp_path: Path, all_of_it: bool, names: list[str], shared: bool, seed: int, dtype: torch.dtype
) -> None:
    settings: dict[str, Any] = {"hist": True, "first_bad": "report", "keep_bad": tmp_path / "bad"} if all_of_it else {}
    model, x = make(names, shared, seed, dtype)
    expected = train(copy.deepcopy(model), x, plainly)
    with hookcli.watch(model, every=1, output=tmp_path / "run.jsonl", **settings):
        found = train(model, x, plainly)
    assert equal(expected, found)
    assert sum(hooks_on(model).values()) == 0
