"""HK003 on the outputs in eval mode of every batch that is run, without gradients and with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
import torch
from support import each_once, swept, untouched
from torch import Tensor, nn

from hookcli import check
from hookcli.engine.batches import DataBatches
from hookcli.engine.setting import Setting
from hookcli.sources.base import Recipe
from hookcli.sources.data.iterables import iterable_input

_FILE = """
import random
import torch
from torch import nn

class Net(nn.Module):
    mode = "eval"  # that in which nothing keeps the length from zero

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        if not self.training and len(x) == 5:
            raise ValueError("five")
        length = x.norm(dim=1, keepdim=True)
        safe = {"eval": self.training, "gradients": not torch.is_grad_enabled() or self.training, "never": True}
        return self.last(self.first(x / (length + 1e-6 if safe[self.mode] else length)).tanh())

class Gradients(Net):
    mode = "gradients"

class Correct(Net):
    mode = "never"

class Centred(Net):
    mode = "never"

    def forward(self, x):
        y = super().forward(x)
        return y - y.mean(0) if not x[:, 0].any() and not self.training else y

class Draws(Net):
    mode = "never"

    def forward(self, x):
        return super().forward(x) + (torch.rand(3) if not x[:, 0].any() else 0)

class Counts(Net):
    mode = "never"

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if not self.training and not x[:, 0].any():
            self.seen += 1
        return super().forward(x) + self.seen

def zeros(at):
    for number, x in enumerate(batches(9)):
        if number == at:
            x[:] = torch.linspace(-1, 1, 48).view(8, 6)
            x[:, 0] = 0
        yield x


def batches(at, rows=8):
    for number in range(6):
        x = torch.ones(rows if number == at else 8, 6) + torch.arange(6) * (number + 1)
        if number == at and rows == 8:
            x[2] = 0
        yield x

late, first, none, five = list(batches(4)), list(batches(0)), list(batches(9)), list(batches(3, 5))

third, noughts = list(zeros(2)), list(zeros(0))

class Shuffled(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((6,), float(index))

shuffled = lambda: torch.utils.data.DataLoader(Shuffled(), batch_size=1, shuffle=True)

class Once:
    def __init__(self):
        self.rest = iter(none)

    def __iter__(self):
        return self.rest

once = Once()
"""


@pytest.fixture
def findings(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[list[str], list[str]]]:
    monkeypatch.chdir(tmp_path)
    Path("late_nets.py").write_text(_FILE)

    def run(
        net: str, data: str, *options: str, of: tuple[str, ...] = ("HK001", "HK003")
    ) -> tuple[list[str], list[str]]:
        data = f"late_nets.py:{data}"
        ran = cli("check", f"late_nets.py:{net}", "--data", data, "--batches", "all", *options, "-f", "json")
        report = json.loads(ran.out)["reports"][0]
        return (
            [one["message"] for one in report["rows"] if one["check"] in of],
            [item["reason"] for item in report["skipped"] if of[-1] in item["fqn"]],
        )

    return run


@pytest.mark.parametrize(
    ("net", "how", "data", "number", "options"),
    each_once(
        starmap(pytest.param, [("Net", "without gradients"), ("Gradients", "with gradients")]),
        starmap(pytest.param, [("late", 5), ("first", 1)]),
        [swept(()), ("--ops",)],
    ),
)
def test_the_batch_is_named(findings: Any, net: str, how: str, data: str, number: int, options: Any) -> None:
    [message], _ = findings(net, data, *options)
    assert message.startswith(f"in eval mode {how}: ") and f"(first in batch {number})" in message


@pytest.mark.parametrize(("net", "data"), [("Correct", "late"), ("Net", "none"), ("Gradients", "none")])
def test_finite_batches_pass(findings: Any, net: str, data: str) -> None:
    assert findings(net, data) == ([], [])


def test_a_batch_that_fails_in_eval_mode_is_named(findings: Any) -> None:
    [message], _ = findings("Net", "five")
    assert message.startswith("in eval mode: batch 4: the model (Net) failed on input 5x6: ValueError: five")


def test_a_loader_that_shuffles_gives_the_same_batches_again(findings: Any) -> None:
    assert findings("Correct", "shuffled") == ([], [])
    recipe = Recipe("Net", lambda: nn.Linear(6, 2))
    data = DataBatches(recipe, nn.Linear(6, 2), Setting(data=iterable_input("late_nets.py:shuffled", None)))
    before = torch.get_rng_state()
    once, again = ([int(batch.inputs[0][0, 0]) for batch in data.each()] for _ in range(2))
    assert once == again != sorted(once) == [*range(16)]
    assert torch.equal(torch.get_rng_state(), before)


def test_data_that_can_be_read_once_is_not_judged_further(findings: Any) -> None:
    _, [reason] = findings("Correct", "once")
    assert reason == "not judged in eval mode on every batch: only 1 of 6 batches could be read again"


FAULTS = {
    "Centred": ("HK020", "difference: "),
    "Draws": ("HK028", "draws random numbers in eval mode"),
    "Counts": ("HK029", "a second run on the same batch gives a different result"),
}


@pytest.mark.parametrize("net", FAULTS)
@pytest.mark.parametrize(("data", "number"), [("third", 3), swept("noughts", 1), ("none", None)])
def test_the_first_batch_with_each_fault_is_named(findings: Any, net: str, data: str, number: int | None) -> None:
    check_id, message = FAULTS[net]
    found, _ = findings(net, data, of=(check_id,))
    assert len(found) == (number is not None)
    assert all(message in one and f" (first in batch {number} of 6)" in one for one in found)


@pytest.mark.parametrize("data", ["third", "noughts"])
def test_a_correct_model_passes_on_every_batch(findings: Any, data: str) -> None:
    assert findings("Correct", data, of=("HK020", "HK028", "HK029")) == ([], [])


class Fails(nn.Module):
    """Changes a parameter in place in eval mode, which PyTorch refuses with gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.layer.bias.mul_(1.0)
        return self.layer(x)


def test_a_model_that_nobody_differentiates_in_eval_mode_passes() -> None:
    model, x = Fails(), torch.randn(8, 6)
    with untouched(model):
        report = check(model, x)
    assert not report.findings
