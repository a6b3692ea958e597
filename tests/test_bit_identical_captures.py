"""No observer effect: a capture computes what a random model computes, and leaves it as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import PROBES, examples, make, models
from support import equal, hooks_on
from torch import Tensor

import hookcli


@contextmanager
def fused_attention(on: bool) -> Iterator[None]:
    """Costs are counted without it, as a report's `meta` says; it computes other bits."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(on)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.parametrize("probe", sorted(PROBES))
@examples(3)
@given(names=models, shared=st.booleans(), seed=st.integers(0, 99), training=st.booleans())
def test_a_capture_computes_what_the_model_computes_and_leaves_it_as_it_was(
    probe: str, names: list[str], shared: bool, seed: int, training: bool
) -> None:
    model, x = make(names, shared, seed, torch.float32)
    model.train(training)
    outputs: list[Tensor] = []
    gradient = probe in ("graph", "trace") or "grads" in probe
    handle = model.register_forward_hook(lambda m, a, y: outputs.append(y.detach().clone()))
    before = copy.deepcopy(model.state_dict()), x.clone()
    torch.manual_seed(3)
    random = torch.get_rng_state()
    with torch.set_grad_enabled(gradient), fused_attention(PROBES[probe]().fastpath):
        copy.deepcopy(model)(x)
    torch.set_rng_state(random)
    hookcli.capture(model, x, [PROBES[probe]()])
    handle.remove()
    assert torch.equal(outputs[0], outputs[-1])
    assert equal((model.state_dict(), x, random), (*before, torch.get_rng_state()))
    assert all(p.grad is None for p in model.parameters())
    assert sum(hooks_on(model).values()) == 0
