"""Models that come and go, are copied, saved and hooked by the program itself, as if nobody looked."""

from __future__ import annotations

import copy
import gc
import io
import warnings
import weakref
from typing import Any

import pytest
import torch
from observing import observed, observing
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from hookcli.record.observe.models.models import ObservedModels
from hookcli.record.observe.optimizers.optimizer_steps import OptimizerSteps


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))


@pytest.mark.sweep
def test_models_that_are_thrown_away_are_freed() -> None:
    """Also those that wait for a backward pass that never comes: their graph is gone."""
    alive: list[int] = []

    def program() -> None:
        models: list[weakref.ref[nn.Module]] = []
        for number in range(12):
            model = net()
            models.append(weakref.ref(model))
            output = model(torch.ones(2, 4))
            if number % 3 == 1:
                output.sum().backward()
            elif number % 3 == 2:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                output.sum().backward()
                optimizer.step()
                del optimizer
            del model, output
            gc.collect()
            alive.append(sum(ref() is not None for ref in models))

    with observing() as seen:
        program()
    assert max(alive) <= 1 and not seen.errors and len(seen.recorded) == 12
    assert [len(w.losses) for w in seen.recorded] == [0, 1, 1] * 4


@pytest.mark.sweep
@pytest.mark.parametrize("settings", [{}, {"first_bad": "report", "match": "0", "check": True, "hist": True}])
def test_a_model_is_freed_at_once_as_without_hookcli(settings: dict[str, Any]) -> None:
    """No cycle of ours keeps it, and the memory of an accelerator with it, until the next garbage collection."""
    freed = list[bool]()
    gc.disable()
    try:
        with observing(**settings) as seen:
            for _ in range(3):
                model = net()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                with torch.no_grad():
                    model(torch.ones(2, 4))
                last = weakref.ref(model)
                del model, optimizer
                freed.append(last() is None)
    finally:
        gc.enable()
    assert freed == [True] * 3 and len(seen.recorded) == 6 and not seen.errors


def test_what_is_kept_of_a_model_is_freed_with_it() -> None:
    model, steps = nn.Linear(2, 2), OptimizerSteps()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps.add(optimizer)
    models = ObservedModels(steps)
    found = models.find(model)
    assert found is not None and models.of(optimizer) == [found]
    kept = weakref.ref(found)
    del model, found
    assert kept() is None and models.of(optimizer) == []


@pytest.mark.sweep
def test_memory_does_not_grow_with_steps() -> None:
    model, loss_of = net(), nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters())
    target = torch.zeros(2, 1)

    def steps(number: int) -> int:
        for _ in range(number):
            optimizer.zero_grad()
            loss_of(model(torch.ones(2, 4)), target).backward()
            optimizer.step()
        gc.collect()
        return len(gc.get_objects())

    with observing() as seen:
        steps(5)
        seen.recorded.clear()
        before = steps(1)
        seen.recorded.clear()
        after = steps(20)
        kept = len(seen.recorded)
        seen.recorded.clear()
        assert len(gc.get_objects()) < before + 200 and after >= before and kept == 20


@pytest.mark.sweep
@pytest.mark.parametrize("whole", [True, False], ids=["output", "element"])
def test_what_a_backward_pass_began_at_is_freed(whole: bool) -> None:
    freed: list[bool] = []

    def program() -> None:
        output = nn.Linear(4, 4)(torch.ones(2, 4))
        memory = StorageWeakRef(output.untyped_storage())
        if whole:
            output.backward(torch.ones_like(output))
        else:
            output[0, 0].backward()
        del output
        freed.append(memory.expired())

    observed(program)
    assert freed == [True, True]


@pytest.mark.sweep
def test_a_program_that_copies_and_saves_its_model_at_any_time() -> None:
    def program() -> list[Any]:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found: list[Any] = []
        for _ in range(2):
            optimizer.zero_grad()
            output = model(torch.ones(2, 4))
            found += [copy.deepcopy(model), saved(model), saved(output), saved(optimizer.state_dict())]
            output.sum().backward()
            found += [copy.deepcopy(model), copy.deepcopy(optimizer).state_dict(), saved(model)]
            optimizer.step()
        return found

    def saved(x: Any) -> bytes:
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as one that hooks are not saved
            torch.save(x, file)
        return file.getvalue()

    seen = observed(program)
    assert seen.steps("Sequential") == [0, 1]


@pytest.mark.sweep
def test_a_copy_is_another_model() -> None:
    def program() -> list[nn.Module]:
        model = net()
        model(torch.ones(1, 4))
        copied = copy.deepcopy(model)
        copied(torch.ones(1, 4))
        return [model, copied]

    assert {name: ran.forwards for name, ran in observed(program).ran.items()} == {"Sequential": 1, "Sequential #2": 1}


@pytest.mark.sweep
def test_two_observers_at_once() -> None:
    with observing(every=2) as outer:
        seen = observed(_training)
    assert seen.steps() == [0, 1, 2]
    assert [w.step for w in outer.recorded] == [0, 2] * 2  # alone, and observed


def _training() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    return model
