"""The checks judge recorded steps, also those with values that are not finite."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import hookcli
from hookcli.hooks.torch_private.overrides import innermost_function_mode
from hookcli.record.file.reading import read_record


def test_the_module_whose_weight_is_infinite_is_found_in_a_recorded_step(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hookcli.watch(model, every=1, output=tmp_path / "a.jsonl", check=True):
        for _ in range(2):
            model(torch.ones(8, 2)).sum().backward()
            optimizer.step()
            with torch.no_grad():
                model[1].weight[0, 0] = float("inf")
    first, second = read_record(tmp_path / "a.jsonl").steps(read_record(tmp_path / "a.jsonl").entries)
    found = [{f.check: f.fqn for report in step.reports for f in report.findings} for step in (first, second)]
    [report] = [report for report in first.reports if report.probe == "check"]
    further_runs, crash, hooks_left = {"HK020", "HK028", "HK029"}, "HK001", "HK019"
    assert not {*further_runs, crash, hooks_left} & {*report.meta["checks"]}
    assert [one.fqn for one in report.skipped] == ["HK053 not-in-optimizer", "HK054 still-weights"]  # one step
    assert {"HK003", "HK009", "HK034"} <= {*report.meta["checks"]} and "HK003" not in found[0]
    assert found[1]["HK003"] == "1"


def test_a_layer_that_kills_all_channels_is_named_in_a_recorded_step(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].bias.fill_(-50.0)
    with hookcli.watch(model, every=1, output=tmp_path / "a.jsonl", check=True):
        model(torch.ones(8, 2)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    (step,) = read_record(tmp_path / "a.jsonl").steps(read_record(tmp_path / "a.jsonl").entries)
    (said,) = [f.message for report in step.reports for f in report.findings if f.check == "HK010"]
    assert said.startswith("4 of 4 channels zero for every input; its input, from 0, is at most -4")


def test_values_too_few_to_judge_are_those_of_the_programs_batch(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    with hookcli.watch(model, every=1, output=tmp_path / "a.jsonl", check=True):
        model(torch.ones(2, 2)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    (step,) = read_record(tmp_path / "a.jsonl").steps(read_record(tmp_path / "a.jsonl").entries)
    reasons = [one.reason for report in step.reports for one in report.skipped if one.fqn == "1"]
    assert reasons == ["dead-units: too few values per channel (< 8); use a larger batch"]


def test_a_loss_in_the_program_that_takes_probabilities_for_logits(tmp_path: Path) -> None:
    """Together with a plain tensor, whose uses are watched in forwards alone."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.gain = nn.Linear(2, 4), torch.rand(4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = (self.layer(x) * self.gain).softmax(-1)
            return y

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    modes = []
    with hookcli.watch(model, every=1, output=tmp_path / "a.jsonl", check=True):
        for _ in range(2):
            y = model(torch.randn(8, 2))
            modes.append(innermost_function_mode())
            torch.nn.functional.cross_entropy(y, torch.zeros(8, dtype=torch.long)).backward()
            optimizer.step()
    steps = read_record(tmp_path / "a.jsonl").steps(read_record(tmp_path / "a.jsonl").entries)
    found = [{f.check for report in step.reports for f in report.findings} for step in steps]
    assert found == [{"HK034", "HK037"}] * 2 and modes == [None, None]
