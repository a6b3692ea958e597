"""Parameters of which this process has but a shard (FSDP2): figures are of that, and say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from observing import observing, rows
from records import HEADER, end, ran, save
from support import assert_stats, float64_stats
from torch import Tensor, distributed, nn

from hookcli.record.file.reading import read_record
from hookcli.record.file.views.summary import summary
from hookcli.table.grouping import View


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """Two ranks, of which the first one is made up."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield
    distributed.destroy_process_group()


def local(tensor: Tensor) -> Tensor:
    mine: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return mine.detach().clone()


def test_figures_of_sharded_parameters_are_of_this_ranks_shard_and_say_so(tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1))  # the first rank has its one row
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observing() as seen:
        model(torch.ones(3, 4)).sum().backward()
        before = {fqn: local(p) for fqn, p in model.named_parameters()}
        grads = {fqn: local(p.grad) for fqn, p in model.named_parameters()}  # type: ignore[arg-type]
        optimizer.step()
    recorded = seen.only
    for fqn, p in model.named_parameters():
        grad, update = rows(recorded, "grads", "parameter")[fqn], rows(recorded, "updates")[fqn]
        assert grad["sharded"] == update["sharded"] == [1]
        assert_stats(grad.stats, float64_stats(grads[fqn]))  # type: ignore[arg-type]
        assert update["weight"] == pytest.approx(before[fqn].double().norm().item(), rel=1e-6)
        assert update["update"] == pytest.approx((local(p) - before[fqn]).double().norm().item(), rel=1e-5)
    (held,) = (report.rows[0] for report in recorded.reports if report.probe == "optimizer")
    assert (
        held["unclipped_grad"]
        == held["param_grad"]
        == pytest.approx(sum(float(grad.double().square().sum()) for grad in grads.values()) ** 0.5, rel=1e-6)
    )
    assert "sharded" not in rows(recorded, "grads", "output")["0"].values and len(recorded.losses) == 1
    record = read_record(save(tmp_path / "x", [HEADER, recorded, end([ran(recorded.model)])]))
    assert "of this rank's shard alone" in summary(record, record, "x", View(width=160))


def test_parameters_that_are_whole_say_nothing() -> None:
    model = nn.Linear(2, 1)
    with observing() as seen:
        model(torch.ones(1, 2)).sum().backward()
    assert seen.only.notes == [] and "sharded" not in rows(seen.only, "grads", "parameter")["weight"].values


def test_a_rank_that_finds_a_nan_asks_the_other_ranks_for_nothing(tmp_path: Path) -> None:
    """The others may be elsewhere, and would not take part in a collective."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    model = nn.Linear(4, 6)
    model.weight = nn.Parameter(distribute_tensor(torch.full((6, 4), torch.nan), mesh, [Shard(0)], src_data_rank=None))
    model.bias = nn.Parameter(distribute_tensor(torch.zeros(6), mesh, [Shard(0)], src_data_rank=None))
    x = distribute_tensor(torch.ones(3, 4), mesh, [Replicate()], src_data_rank=None)
    with observing(first_bad="report", keep_bad=str(tmp_path)) as seen, torch.profiler.profile() as profile:
        model(x)
    (bad,) = seen.non_finites
    assert bad.cause == "its weight is not finite in this rank's shard"
    assert [event.key for event in profile.key_averages() if "c10d" in event.key] == []
