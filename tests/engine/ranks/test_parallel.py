"""How a batch and a model are divided: what needs no process group."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn

from hookcli.engine.prepare import prepare_run
from hookcli.engine.ranks.parallel import blocks
from hookcli.engine.setting import Setting
from hookcli.errors import UsageError
from hookcli.sources.base import Recipe
from hookcli.sources.inputs import parse_input
from hookcli.system.torchrun import World, world


def names(model: nn.Module) -> list[str]:
    by_id = {id(module): name for name, module in model.named_modules()}
    return [by_id[id(block)] for block in blocks(model)]


def test_a_resnet_is_sharded_block_by_block() -> None:
    with torch.device("meta"):
        model = torchvision.models.resnet18()
    assert names(model) == [f"layer{n}.{i}" for n in range(1, 5) for i in range(2)]


def test_containers_in_containers_are_opened_and_what_has_no_parameters_is_left() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.ModuleList([nn.Linear(2, 2)]))
    model = nn.ModuleDict({"net": nn.Sequential(model, nn.Linear(2, 2))})
    assert names(model) == ["net.0.0.0", "net.0.1.0", "net.1"]


@pytest.mark.parametrize("batched", [True, False])
def test_the_parts_of_the_batch_are_those_of_the_whole(batched) -> None:
    arrange = (lambda tensors: tuple(tensors)) if batched else (lambda tensors: (list(tensors),))
    recipe = Recipe("net", lambda: nn.Linear(2, 2), arrange=arrange, batched=batched)
    given = Setting(inputs=(parse_input("6x2"),), batch=6)
    whole = prepare_run(recipe, given).inputs
    parts = [prepare_run(recipe, Setting(inputs=given.inputs, batch=6, part=part, parts=3)) for part in range(3)]
    assert {part.info["input"] for part in parts} == {prepare_run(recipe, given).info["input"]}
    if batched:
        assert torch.equal(torch.cat([part.inputs[0] for part in parts]), whole[0])
    else:
        assert torch.equal(torch.stack([x for part in parts for x in part.inputs[0]]), torch.stack(whole[0]))


@pytest.mark.parametrize(("batch", "fits"), [(1, 4), (3, 4), (5, 8), (6, 8)])
def test_a_batch_that_does_not_divide(batch, fits) -> None:
    recipe = Recipe("net", lambda: nn.Linear(2, 2))
    setting = Setting(inputs=(parse_input(f"{batch}x2"),), part=1, parts=4)
    with pytest.raises(
        UsageError, match=f"a batch of {batch} does not divide by 4 processes; --batch-size {fits} does"
    ):
        prepare_run(recipe, setting)


def test_natural_batches_are_a_part_for_each() -> None:
    recipe = Recipe("net", lambda: nn.Linear(2, 2), inputs=(parse_input("1x2"),))
    prepared = prepare_run(recipe, Setting(natural_batch=2, part=1, parts=4))
    assert prepared.info["input"] == "8x2" and prepared.inputs[0].shape == (2, 2)


def test_a_rank_is_one_where_torchrun_says_so(monkeypatch) -> None:
    for name, value in {"RANK": 3, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert world() == World()  # a job scheduler's variables alone start nothing
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert world() == World(3, 8, 1, 2) and not world().writes
