"""Models that a script compiles, whole or in part. What can't be seen is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.convert_frame as convert_frame
import torch._dynamo.utils as dynamo
from observing import observed, rows, skipped
from small_models import Parts
from support import swept
from torch import Tensor, nn


def test_a_part_that_was_compiled_before_the_model_ran_is_no_model() -> None:
    def program() -> nn.Module:
        inner = nn.Sequential(nn.Linear(2, 2))
        inner.compile(backend="eager")
        model = nn.Sequential(inner, nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()
        return model

    assert {name: ran.forwards for name, ran in observed(program).ran.items()} == {"Sequential": 1}


def compiled(how: str) -> Callable[[], Any]:
    def program() -> Any:
        frames = convert_frame.FRAME_COUNTER
        torch._dynamo.reset()
        convert_frame.FRAME_COUNTER = frames  # which a program that compiles does not put back in its course
        dynamo.counters.clear()
        model = run = Parts()
        if how == "outer":
            run = torch.compile(model, backend="aot_eager")
        elif how == "in place":
            model.compile(backend="aot_eager")
        elif how == "inner":
            model.inner = torch.compile(model.inner, backend="aot_eager")
        elif how == "inner in place":
            model.inner.compile(backend="aot_eager")

        def step(x: Tensor) -> Tensor:
            return run(x).sum()

        if how == "function":
            step = torch.compile(step, backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            step(torch.randn(4, 4)).backward()
            optimizer.step()
        kept = {key: dict(dynamo.counters[key]) for key in ("graph_break", "recompiles", "stats")}
        return [model, str(kept)]

    return program


PARAMETERS = {f"{part}.{kind}" for part in ("first", "inner.0", "last") for kind in ("weight", "bias")}


@pytest.mark.sweep
@pytest.mark.filterwarnings("error:.*global hooks.*")
@pytest.mark.parametrize("how", ["inner", *map(swept, ["outer", "in place", "inner in place", "function"])])
def test_what_can_be_seen_of_compiled_models(how: str) -> None:
    """The same graphs, no more breaks and no recompilation: the counters of torch.compile are part of the result."""
    seen = observed(compiled(how), every=2)
    (name,) = seen.ran
    assert [(w.model, w.step) for w in seen.recorded] == [(name, 0), (name, 2)] and seen.ran[name].steps == 3
    for recorded in seen.recorded:
        updates = rows(recorded, "updates")
        assert len(updates) == len(rows(recorded, "grads", "parameter")) == 6
    recorded = seen.recorded[-1]
    said = " ".join([*skipped(recorded, "activations").values()] if recorded.forwards else seen.ran[name].notes)
    assert "compile" in said
    if how == "function":
        assert name == "parameters of SGD"
        return
    assert name == "Parts" and set(updates) == PARAMETERS
    if how.startswith("inner"):
        outer = {"", "first", "last"} | ({"inner"} if how == "inner" else set())
        assert set(rows(recorded, "activations")) == outer
        assert "inner.0" in skipped(recorded, "activations") and "inner.0" in skipped(recorded, "grads")
    elif how == "outer":
        assert set(rows(recorded, "activations")) == {""} and "first" in skipped(recorded, "activations")


@pytest.mark.sweep
def test_a_model_compiled_in_place_that_is_never_trained_is_told() -> None:
    def program() -> Tensor:
        torch._dynamo.reset()
        model = Parts()
        model.compile(backend="aot_eager")
        with torch.no_grad():
            return model(torch.ones(1, 4))

    seen = observed(program)
    assert seen.recorded == [] and any("compile" in note for note in seen.ran["Parts"].notes)
