"""Where the time of a step goes: a program whose parts take known times, on a clock that only they move."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from observing import observed, report, rows
from record.observe.measurements.slow import (
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    REST,
    Slow,
    SlowData,
    SlowSGD,
    Take,
    now,
    take,
)
from support import exact_only
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hookcli.hooks import clock
from hookcli.record.file.views.overview import overview
from hookcli.record.observe.optimizers import parameters
from hookcli.table.times import NAMES


@pytest.fixture(autouse=True)
def _known_times(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])
    return


def parts(totals: Any) -> dict[str, float]:
    return {part: totals[f"{part}_seconds"] for part in ("data", "forward", "backward", "optimizer", "rest")}


def test_the_parts_of_a_step_and_of_its_modules() -> None:
    def program() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Slow(), nn.ReLU()), nn.Linear(4, 2))
        optimizer = SlowSGD(model.parameters(), lr=0.1)
        for x in DataLoader(SlowData()):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            take(REST)
        return model

    steps = observed(program).recorded
    assert [step.step for step in steps] == [0, 1, 2]
    for step in steps:
        totals = report(step, "time").totals
        expected = {"data": DATA, "forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER, "rest": REST}
        assert parts(totals) == pytest.approx(expected | ({} if step.step else {"rest": 0.0}))
        assert totals["hookcli_seconds"] == 0.0  # this clock does not move with it
        times = rows(step, "time")
        assert list(times) == ["", "0", "1", "1.0", "1.1", "2"] and all(row["calls"] == 1 for row in times.values())
        for fqn in ("", "1", "1.0"):
            assert (times[fqn]["forward_us"], times[fqn]["backward_us"]) == (1e6 * FORWARD, 1e6 * BACKWARD)
        for fqn in ("0", "1.1", "2"):
            assert (times[fqn]["forward_us"], times[fqn]["backward_us"]) == (0.0, 0.0)


class Nested(SlowData):
    def __getitem__(self, index: int) -> Tensor:
        found: Tensor = next(iter(DataLoader(SlowData())))
        return found[0]


class ByModel(SlowData):
    encoder = nn.Sequential(nn.Linear(4, 4), Slow())

    @torch.no_grad()
    def __getitem__(self, index: int) -> Tensor:
        found: Tensor = self.encoder(super().__getitem__(index))
        return found


def fetched_ahead(batches: Iterator[Tensor]) -> Iterator[Tensor]:
    found: list[Tensor] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: found.append(next(batches)))
        thread.start()
        thread.join()
        yield found.pop()


def data_seconds(data: SlowData, fetched: Callable[[Iterator[Tensor]], Iterator[Tensor]] = iter) -> dict[str, float]:
    """By model, those of its last step."""

    def program() -> None:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in fetched(iter(DataLoader(data))):
            model(x).sum().backward()
            optimizer.step()

    return {step.model: parts(report(step, "time").totals)["data"] for step in observed(program).recorded}


def test_a_dataset_that_reads_another_is_waited_for_once() -> None:
    assert data_seconds(Nested()) == {"Linear": DATA}


def test_a_thread_that_fetches_data_ahead_keeps_no_other_thread_waiting() -> None:
    assert data_seconds(SlowData(), fetched_ahead) == {"Linear": 0.0}


def test_a_model_in_a_dataset_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does any model wait for what hookcli does meanwhile."""
    measure = parameters.measure
    monkeypatch.setattr(parameters, "measure", lambda x, **options: take(100.0) or measure(x, **options))
    assert data_seconds(ByModel()) == {"Sequential": DATA, "Linear": DATA + FORWARD}


def test_hookcli_takes_no_part_in_the_programs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = parameters.measure
    monkeypatch.setattr(parameters, "measure", lambda x, **options: take(100.0) or measure(x, **options))

    def train() -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            take(REST)

    totals = report(observed(train).recorded[1], "time").totals
    # Each of two parameters' gradients after backward and before the optimizer's step, and what the module returned.
    assert totals["hookcli_seconds"] >= 400.0 and totals["hookcli_seconds"] % 100.0 == 0.0
    assert parts(totals) == {"data": 0.0, "forward": 0.0, "backward": 0.0, "optimizer": 0.0, "rest": REST}


def test_a_closure_is_no_part_of_the_optimizers_time() -> None:
    def train() -> None:
        model = nn.Sequential(nn.Linear(4, 1), Slow())
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

        def closure() -> Tensor:
            loss = model(torch.ones(1, 4)).sum()
            loss.backward()
            take(OPTIMIZER)
            return loss

        optimizer.step(closure)

    found = parts(report(observed(train).only, "time").totals)
    assert found["optimizer"] and found["optimizer"] % OPTIMIZER == 0.0
    assert found["forward"] % FORWARD == found["backward"] % BACKWARD == 0.0 and found["rest"] == 0.0


def test_forwards_without_gradients_and_micro_batches() -> None:
    def train() -> None:
        model = nn.Sequential(nn.Linear(4, 1), Slow())
        optimizer = SlowSGD(model.parameters(), lr=0.1)
        for _ in range(2):
            with torch.no_grad():
                model(torch.ones(1, 4))
                take(REST)
            for _ in range(3):
                model(torch.ones(1, 4)).sum().backward()
            optimizer.step()

    steps = observed(train).of()
    assert steps
    for step in steps:
        expected = {"data": 0.0, "forward": 3 * FORWARD, "backward": 3 * BACKWARD, "optimizer": OPTIMIZER, "rest": REST}
        assert parts(report(step, "time").totals) == pytest.approx(expected)
        assert rows(step, "time")["1"]["backward_us"] == 3e6 * BACKWARD


def test_memory_is_the_resident_set() -> None:
    ballast = torch.ones(50_000_000, dtype=torch.uint8)
    totals = report(observed(lambda: nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()).only, "time").totals
    assert ballast.numel() < totals["resident_bytes"] < 2**40


@exact_only
def test_operators_are_timed_where_they_are_rows() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), Slow())

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.body(x) * 2)

    def program() -> nn.Module:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        return model

    times = rows(observed(program, timed=True, ops="functions").only, "time")
    assert {":mul_1", ":relu_1"} <= times.keys() and "test_step_times.py:" in times[":relu_1"]["source"]
    assert [times[":mul_1"].get(name) for name in NAMES] == [0.0] * 4 and times[":mul_1"]["type"] == "mul"
    assert times[""]["backward_us"] == times["body"]["backward_us"] == 1e6 * BACKWARD
    assert not any(":" in fqn for fqn in rows(observed(program, ops="functions").only, "time"))


@exact_only
def test_times_without_parts_and_by_nodes() -> None:
    def program() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Slow(), Slow()), nn.Linear(4, 2))
        optimizer = SlowSGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for _ in range(3):
                loss: Tensor = Take.apply(model(torch.ones(1, 4)).sum())  # outside of the model
                loss.backward()
            take(REST)
            optimizer.step()
            optimizer.zero_grad()
        return model

    for match in (None, "1*"):
        steps = observed(program, timed=True, match=match).recorded
        assert [step.step for step in steps] == [0, 1]
        for step in steps:
            times = {fqn: [row.get(name) for name in NAMES] for fqn, row in rows(step, "time").items()}
            slow = [3e6 * FORWARD, 3e6 * FORWARD, 3e6 * BACKWARD, 3e6 * BACKWARD]
            assert times["1.0"] == times["1.1"] == pytest.approx(slow)
            assert times["1"] == pytest.approx([2 * slow[0], 0.0, 2 * slow[2], 0.0])
            assert match or times[""] == pytest.approx(times["1"])  # without the loss function's share
            assert match or times["2"] == [0.0] * 4
            shown = {row.fqn: row for row in overview(step).rows}
            assert shown["1.0"]["backward_self_us"] == times["1.0"][3]
