"""Times of calls, on a clock that only the model moves: figures that a person can add up."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch
from engine.timed_models import Clock, Net, Once, Work, stopped_clock
from support import equal, untouched
from torch import Tensor, nn

from hookcli.diff.rows import diff
from hookcli.engine import timing
from hookcli.engine.capture import capture
from hookcli.engine.setting import Feedback
from hookcli.engine.step import Step
from hookcli.errors import UsageError
from hookcli.hooks.clock import DeviceTimer
from hookcli.table import Report
from hookcli.table.grouping import group_rows
from hookcli.table.times import NAMES


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return stopped_clock(monkeypatch)


def times(report: Report) -> dict[tuple[str, int], tuple[float | None, ...]]:
    return {(row.fqn, row.get("call") or 0): tuple(row.get(name) for name in NAMES) for row in report.rows}


def test_times_with_and_without_parts(clock: Clock) -> None:
    model = Net(clock).train()
    with untouched(model):
        report = capture(model, torch.ones(4, 2), "activations", time=True)[0]
    assert times(report) == {
        ("", 0): (141, 30, 1110, 0),
        ("block", 0): (11, 7, 110, 70),
        ("block.one", 0): (1, 1, 10, 10),
        ("block.one", 1): (1, 1, 10, 10),
        ("block.other", 0): (2, 2, 20, 20),
        ("norm", 0): (0, 0, 0, 0),
        ("head", 0): (100, 100, 1000, 1000),
    }
    assert report.totals["forward_us"] == 141 and report.totals["backward_us"] == 1110
    assert [c.name for c in report.columns[-4:]] == [*NAMES] and report.meta["notes"][-1].startswith("times: median")
    assert sum(row["forward_self_us"] for row in report.rows) == 141


def test_forward_alone_in_eval_mode(clock: Clock) -> None:
    report = capture(Net(clock).eval(), torch.ones(4, 2), "shapes", time=True)[0]
    assert times(report)["block", 0] == (11, 7, None, None) and "backward_us" not in report.totals
    assert [c.name for c in report.columns[-2:]] == ["forward_us", "forward_self_us"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_part_of_backward(clock: Clock, reentrant: bool) -> None:
    x = torch.ones(4, 2, requires_grad=True)
    found = times(capture(Net(clock, again=reentrant).train(), x, "activations", time=True)[0])
    assert found["", 0][:2] == (141, 30) and found["block", 0][:2] == (11, 7)
    assert found["", 0][2] == 1110 + 11  # the block's forward once more
    assert found["block.one", 0][3] == found["block.one", 1][3] == 10
    assert found["head", 0][2:] == (1000, 1000)


def test_each_time_is_a_median_and_the_model_s_their_sum(clock: Clock) -> None:
    first, last = Work(clock, cycle([0, 5, 1, 9, 2, 3])), Work(clock, cycle([0, 4, 4, 400, 4, 4]))
    report = capture(nn.Sequential(first, last).eval(), torch.ones(1, 2), "activations", time=True)[0]
    assert [row["forward_us"] for row in report.rows] == [7, 3, 4]  # the first pass, which warms up, does not count


def test_a_model_that_takes_long_is_timed_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_LONGEST", 0.0)
    report = capture(Work(clock, cycle([0, 5, 6])).eval(), torch.ones(1, 2), "activations", time=True)[0]
    assert report.rows[0]["forward_us"] == 5 and "one pass" in report.meta["notes"][-1]


def test_the_pass_that_is_timed_is_said(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "PASSES", 2)
    stages: list[str] = []
    model = timing.TimedModel(Work(clock, cycle([1])).eval(), torch.ones(1, 2), Step())
    _, note = timing.time_passes(model, feedback=Feedback(stages.append))
    assert stages == ["timing: pass 1 of 2", "timing: pass 2 of 2"]
    assert note == "times: median of 2 passes after the measured one"


def test_gradients_of_parameters_have_their_module_s_times_once(clock: Clock) -> None:
    report = capture(Net(clock), torch.ones(4, 2), "grads", step=Step(passes=2), time=True)[0]
    rows = {(row.fqn, row["pass"]): row for row in report.rows}
    assert [rows["block.one.weight", 0][name] for name in NAMES] == [2, 2, 20, 20]  # of both calls
    assert [rows["block.weight", 0][name] for name in NAMES] == [11, 7, 110, 70]
    assert rows["block.weight", 1]["forward_us"] is None
    norm = [row["forward_us"] for row in report.rows if row.fqn.startswith("norm") and not row["pass"]]
    assert sorted(norm, key=str) == [0, None]  # two parameters, one module
    grouped = {(row.fqn, row["pass"]): row for row in group_rows(report, 1).rows}
    assert [grouped["block", 0][name] for name in NAMES] == [11, 11, 110, 110]  # of those that own parameters


def test_grouped_calls_add_up(clock: Clock) -> None:
    report = capture(Net(clock), torch.ones(4, 2), "activations", time=True)[0]
    grouped = {row.fqn: row for row in group_rows(report, 2).rows}
    assert grouped["block.one"]["forward_us"] == 2 and grouped["block.one"]["merged"] == 2
    assert {row.fqn: row for row in group_rows(report, 1).rows}["block"]["forward_us"] == 11


def test_of_a_nested_output_the_first_row_has_the_times(clock: Clock) -> None:
    class Two(Work):
        def forward(self, x: Tensor) -> Any:
            return (super().forward(x), x + 1)

    report = capture(Two(clock, 5).eval(), torch.ones(1, 2), "shapes", time=True)[0]
    assert [row["forward_us"] for row in report.rows] == [5, None] and not report.skipped


def test_a_model_that_fails_when_it_is_timed_keeps_its_report(clock: Clock) -> None:
    report = capture(Once(2, 2).eval(), torch.ones(1, 2), "activations", time=True)[0]
    assert report.rows[0].stats and "ValueError: only once" in report.skipped[-1].reason


def test_times_are_no_difference(clock: Clock) -> None:
    model, x = Work(clock, cycle(range(1, 40))).eval(), torch.ones(1, 2)
    a, b = (capture(model, x, "shapes", time=True)[0] for _ in range(2))
    assert a.rows[0]["forward_us"] != b.rows[0]["forward_us"]
    assert diff(a, b).totals["beyond"] == 0


def test_results_are_the_same_bits_and_random_numbers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.BatchNorm1d(3)).train()
    x = torch.randn(4, 3)
    plain, timed = (capture(model, x, "activations", time=on)[0] for on in (False, True))
    with untouched(model):
        capture(model, x, "grads", time=True)
    assert equal([row.stats.l2 for row in plain.rows if row.stats], [row.stats.l2 for row in timed.rows if row.stats])


def test_nothing_is_timed_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    report = capture(model, torch.ones(1, 2, device="meta"), "shapes", time=True)[0]
    assert "meta" in report.skipped[-1].reason
    with pytest.raises(UsageError, match="meta"):
        timing.TimedModel(model, torch.ones(1, 2, device="meta"), Step()).once()


def test_an_accelerator_s_moments_are_events_that_are_read_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []

    class Event:
        def __init__(self, device: torch.device, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            said.append(stream)

        def elapsed_time(self, ended: Event) -> float:
            return 1.5

    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.accelerator, "synchronize", said.append)
    timer = DeviceTimer(device := torch.device("cuda:1"))
    began, ended = timer.now(), timer.now()
    assert said == ["stream of cuda:1"] * 2
    timer.wait()
    assert said[2:] == [device] and timer.between(began, ended) == 1500


class Functional(Work):
    """Multiplies in 2 x 3 microseconds, since it keeps two tensors, and in 2 x 5 in backward."""

    def forward(self, x: Tensor) -> Tensor:
        def passing(spent: float) -> Callable[[Tensor], Tensor]:
            def take(kept: Tensor) -> Tensor:
                self.clock.time += spent
                return kept

            return take

        self.clock.time += 40
        with torch.autograd.graph.saved_tensors_hooks(passing(3), passing(5)):
            return x * self.weight * self.weight + 1


def test_times_of_operators(clock: Clock) -> None:
    model = nn.Sequential(Functional(clock, 0), Work(clock, 100, 1000)).train()
    x = torch.ones(4, 2, requires_grad=True)
    found = times(capture(model, x, "activations", ops="functions", time=True)[0])
    assert found["", 0] == (152, 0, 1020, 0) and found["0", 0][::2] == (52, 20)
    exact = hasattr(torch.autograd.graph, "node_creation_hook")  # else operators have no times of backward
    assert found["0", 0] == (52, 40, 20, 0 if exact else 20)
    for name, spent in (("mul_1", (6, 6, 10, 10)), ("mul_2", (6, 6, 10, 10)), ("add_1", (0, 0, 0, 0))):
        assert found[f"0:{name}", 0] == (spent if exact else (*spent[:2], None, None))


def test_each_call_of_a_module_has_operators_of_its_own(clock: Clock) -> None:
    part = Functional(clock, 0)
    with untouched(part):
        report = capture(nn.Sequential(part, part).train(), torch.ones(1, 2), "activations", ops="functions", time=True)
    found = times(report[0])
    assert found["0:mul_2", 0][:2] == found["0:mul_2", 1][:2] == (6, 6) and found["", 0][:2] == (49 + 52, 0)
