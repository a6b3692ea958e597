"""`hookcli.watch`: the record of one model, inside a program."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from observing import global_state, rows
from support import equal, hooks_on
from torch import Tensor, nn

import hookcli
from hookcli.errors import UsageError
from hookcli.record.file.reading import read_record
from hookcli.record.model_recording import ModelRecording, _shares_parameters
from hookcli.record.observe.recording_plan import PROBES
from hookcli.record.record_sink import new_header


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def train(model: nn.Module, steps: int = 5) -> Any:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).pow(2).sum().backward()
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def net() -> Net:
    torch.manual_seed(1)
    return Net()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_record_of_one_model_among_others() -> None:
    before, alone, model, other = global_state(), train(net()), net(), net()
    with hookcli.watch(model, every=2) as recording:
        weights = train(model)
        train(other)
    assert equal(weights, alone) and global_state() == before and not any(hooks_on(model).values())
    assert recording.path == Path.cwd() / "Net.run.jsonl"
    record = read_record(recording.path)
    assert [(place.model, place.step) for place in record.entries] == [("Net", 0), ("Net", 2), ("Net", 4)]
    assert record.header is not None and record.header.name == "Net" and record.header.argv == []
    assert record.end is not None and record.end.exit_code == 0 and len(record.end.models) == 1
    assert [r.probe for r in recording.reports()] == list(PROBES)
    recorded = recording.latest["Net", "train"]
    assert recorded.step == 4 and set(rows(recorded, "activations")) == {"", "body", "body.0", "body.1", "head"}


@pytest.mark.sweep
@pytest.mark.parametrize(("limit", "recorded"), [(0, 0), (1, 2), (9, 6)])
def test_a_limit_of_forwards_without_gradients(limit: int, recorded: int) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hookcli.watch(model, every=1, no_grad=limit) as recording:
        for _ in range(2):
            with torch.no_grad():
                for _ in range(3):
                    model(torch.ones(1, 4))
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
    record = read_record(recording.path)
    assert sum(entry.phase == "no_grad" for entry in record.entries) == recorded
    assert record.end is not None and record.end.models[0]["left_out"] == 6 - recorded


@pytest.mark.sweep
def test_what_wraps_it_and_its_parts_count_as_it() -> None:
    model = net()
    with hookcli.watch(model, every=1) as recording:
        nn.DataParallel(model)(torch.ones(1, 4))
        model.body(torch.ones(1, 4))
    assert {name for name, _ in recording.latest} == {"Net", "Net.body"}


def test_an_error_ends_the_record_and_goes_on() -> None:
    with pytest.raises(KeyError, match="mine"), hookcli.watch(net(), every=1, output="my.jsonl") as recording:
        raise KeyError("mine")
    end = read_record(recording.path).end
    assert recording.path.name == "my.jsonl" and end is not None
    assert (end.exit_code, end.error) == (1, "KeyError: 'mine'")


@pytest.mark.sweep
def test_a_recording_that_is_started_and_stopped_by_hand() -> None:
    model = net()
    recording = ModelRecording(model, every=1, first_bad="report").start()
    with torch.no_grad():
        model(torch.full((1, 4), float("nan")))
    recording.stop()
    recording.stop()
    model(torch.ones(1, 4))
    record = read_record(recording.path)
    assert len(record.entries) == 1 and record.non_finite[0].fqn == ""  # the model, whose input it is
    assert record.lines == 7  # the header, two layouts, the value, the step, the settings, the end


@pytest.mark.sweep
def test_a_full_disk_is_told_once(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def full(number: int, data: bytes) -> int:
        if bytes(data).startswith(b"hookcli: "):  # a remark
            return write(number, data)
        raise OSError(28, "No space left on device")

    alone, model = train(net()), net()
    with hookcli.watch(model, every=1) as recording:
        monkeypatch.setattr("hookcli.record.file.writer.os.write", full)
        weights = train(model)
        monkeypatch.undo()
    assert equal(weights, alone)
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and f"can't write {recording.path}: No space left on device" in err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"every": 0}, "every 0 steps"),
        ({"steps": "7"}, "7"),
        ({"probes": "activation"}, "activations"),
        ({"first_bad": "halt"}, "halt"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ModelRecording(net(), **settings)
    assert not list(Path.cwd().iterdir())


def test_a_file_that_can_not_be_made() -> None:
    with pytest.raises(FileNotFoundError):
        ModelRecording(net(), output="no/such/folder.jsonl")


def test_an_unrelated_module_is_asked_once_for_its_parameters() -> None:
    model, other = nn.Linear(2, 2), Asked()
    is_part = _shares_parameters(model)
    assert [is_part(module) for module in (model, nn.Sequential(model), other, other)] == [True, True, False, False]
    assert other.times == 1


class Asked(nn.Linear):
    times = 0

    def __init__(self) -> None:
        super().__init__(2, 2)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        self.times += 1
        return super().parameters(recurse)


def test_a_record_names_the_versions_that_ran() -> None:
    header = new_header("net.py", ["net.py"], 10)
    assert header.versions["torch"] == version("torch") and header.versions["hookcli"] == version("hookcli")
    assert header.versions["python"] == platform.python_version()
