"""Models and modules are called what they are without the wrappers around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from observing import observed, rows
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

from hookcli.record.observe.naming import PlainNames, plain_type, unwrap

PLAIN = ["", "0", "1", "2", "2.0", "2.1"]
PARAMETERS = ["0.weight", "0.bias", "2.0.weight", "2.0.bias"]


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.Tanh(), nn.Sequential(nn.Linear(6, 2), nn.Identity()))


class Sharded(nn.Module):
    """As FullyShardedDataParallel holds what it wraps."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._fsdp_wrapped_module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._fsdp_wrapped_module(x)


def inside(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], nn.Module]:
    def wrapped(model: nn.Module) -> nn.Module:
        model[2] = wrap(model[2])  # type: ignore[operator, index]
        return model

    return wrapped


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "none": lambda model: model,
    "DataParallel": nn.DataParallel,
    "FSDP": Sharded,
    "FSDP inside": inside(Sharded),
    "FSDP in DataParallel": lambda model: nn.DataParallel(Sharded(model)),
    "checkpoint inside": inside(checkpoint_wrapper),
    "checkpoint": checkpoint_wrapper,
}


def training(wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
    model = wrap(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    return model


@pytest.mark.sweep
@pytest.mark.parametrize("name", WRAPPERS)
def test_names_without_wrappers(name: str) -> None:
    seen = observed(lambda: training(WRAPPERS[name]))
    assert [(w.model, w.step) for w in seen.recorded] == [("Net", 0), ("Net", 1)] and set(seen.ran) == {"Net"}
    for recorded in seen.recorded:
        assert sorted(rows(recorded, "activations")) == PLAIN
        assert all(row["calls"] == 1 for row in rows(recorded, "activations").values())
        assert list(rows(recorded, "updates")) == PARAMETERS == list(rows(recorded, "grads", "parameter"))
        if name != "checkpoint":
            assert set(rows(recorded, "grads", "output")) == set(PLAIN)


@pytest.fixture
def group() -> Iterator[None]:
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.sweep
@pytest.mark.usefixtures("group")
def test_a_model_that_is_trained_by_several_processes() -> None:
    seen = observed(lambda: training(nn.parallel.DistributedDataParallel).module)
    assert [(w.model, w.step) for w in seen.recorded] == [("Net", 0), ("Net", 1)]
    assert sorted(rows(seen.recorded[1], "activations")) == PLAIN == sorted(rows(seen.recorded[1], "grads", "output"))
    assert list(rows(seen.recorded[1], "updates")) == PARAMETERS


@pytest.mark.sweep
def test_an_averaged_model_is_another_model() -> None:
    def program() -> list[nn.Module]:
        model = training(lambda model: model)
        average = AveragedModel(model)
        with torch.no_grad():
            average(torch.ones(2, 4))
        return [model, average]

    seen = observed(program)
    assert set(seen.ran) == {"Net", "Net #2"}
    (recorded,) = seen.of("Net #2", "no_grad")
    assert sorted(rows(recorded, "activations")) == PLAIN


def test_names_of_ones_own_that_look_like_wrappers_stay() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Sequential(nn.Linear(2, 2))

    names = PlainNames(Mine())
    assert names("module.0.weight") == "module.0.weight" and plain_type(Mine()) == "Mine"
    model = Mine()
    assert unwrap(model) is model and unwrap(nn.DataParallel(nn.DataParallel(model))) is model
    outer = nn.Sequential(nn.DataParallel(model))
    assert PlainNames(outer)("0.module.module.0.weight") == "0.module.0.weight"
