"""The first line of a table of figures without a verdict, against sizes that are counted by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookcli
from hookcli.reporters.largest import first_lines
from hookcli.table import Report, Row, TensorStats
from hookcli.table.grouping import View, shown

Cli = Callable[..., Any]


def first(model: nn.Module, x: Tensor, probe: str, **view: Any) -> str:
    asked = View(**view)
    lines = first_lines(shown(hookcli.capture(model, x, [probe])[0], asked), asked)
    return "\n".join(lines)


def handmade(probe: str, rows: Mapping[str, TensorStats], **values: Any) -> Report:
    return Report(probe, "net", (), [Row({"fqn": fqn, **values}, stats) for fqn, stats in rows.items()])


class Own(nn.Module):
    """Has 60 parameters itself, and computes 3 * 20 * 3 products itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(3, 20))
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x) @ self.table
        return y


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.out = nn.Linear(4, 10, bias=False)
        self.out.weight = self.words.weight
        self.middle = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.middle(self.words(x)))
        return y


class Twice(nn.Module):
    """Calls a layer of 4 * 4 products twice, and one of 4 * 6 once."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.once = nn.Linear(4, 4, bias=False), nn.Linear(4, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.once(self.again(self.again(x)))
        return y


def test_of_shapes_it_names_most_parameters_and_most_macs() -> None:
    wide = nn.Sequential(nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 3))  # 500 and 303 parameters, 400 and 300 MACs
    assert first(wide, torch.ones(1, 4), "shapes") == "layer 0 has most parameters (62.3%) and most MACs (57.1%)"
    assert first(Twice(), torch.ones(1, 4), "shapes") == "once has most parameters (60.0%), again most MACs (57.1%)"
    parts = first(Own(), torch.ones(1, 4), "shapes")  # 60 of 75 parameters; 60 of 72 MACs
    assert parts == "(model) itself has most parameters (80.0%) and most MACs (83.3%)"
    tied = first(Tied(), torch.zeros(1, 1, dtype=torch.int64), "shapes")  # 40 of 56; 40 of 56 MACs
    assert tied == "words and 1 more have most parameters (71.4% each), out most MACs (71.4%)"


def test_it_names_nothing_where_all_have_as_much() -> None:
    same = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    assert first(same, torch.ones(1, 4), "shapes") == ""
    assert first(nn.Sequential(nn.ReLU(), nn.Tanh()), torch.ones(1, 4), "shapes") == ""
    assert first(nn.Linear(4, 4), torch.ones(1, 4), "shapes") == ""
    more = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 1))
    assert first(more, torch.ones(1, 4), "shapes").startswith("layer 0 and 2 more have most parameters (30.8% each)")


def test_it_says_of_which_rows_it_speaks() -> None:
    blocks = nn.Sequential()
    for name, width in (("small", 3), ("large", 5)):
        blocks.add_module(name, nn.Sequential(nn.Linear(4, width, bias=False), nn.Linear(width, 4, bias=False)))
    line = first(blocks, torch.ones(1, 4), "shapes", depth=1)
    assert line == "at depth 1: large has most parameters (62.5%) and most MACs (62.5%)"
    line = first(blocks, torch.ones(1, 4), "shapes", depth=7)
    assert line == "large.0 and 1 more have most parameters (31.2% each) and most MACs (31.2% each)"


def test_the_command_line_has_it_for_a_selection_too(cli: Cli, net: Path) -> None:
    ran = cli("shapes", "-q", "net.py:Net", "-i", "2x3x4x4")
    assert ran.out.splitlines()[0] == "fc has most parameters (85.2%), conv most MACs (73.0%)", ran.err
    # conv: 8 * 27 + 8 = 224 parameters, 216 * 16 * 2 MACs; fc: 128 * 10 + 10 = 1290, 1280 * 2
    part = cli("activations", "net.py:Net", "-i", "2x3x4x4", "--match", "[ac]*")
    assert part.out.startswith("of these rows: largest magnitude "), part.out
    saved = json.loads(cli("shapes", "net.py:Net", "-i", "2x3x4x4", "--format", "json").out)
    assert "has most" not in json.dumps(saved)
    page = cli("shapes", "net.py:Net", "-i", "2x3x4x4", "--format", "markdown").out
    assert "\n**fc has most parameters (85.2%), conv most MACs (73.0%)**\n" in page


@pytest.mark.parametrize("probe", ["activations", "inputs"])
def test_of_values_it_names_where_the_largest_begins(probe: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Identity(), nn.Linear(4, 4, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(4) * -9)
        net[2].weight.copy_(torch.eye(4) / 2)
    where = "layer 0" if probe == "activations" else "layer 1"
    line = first(net, torch.tensor([[1.0, 2.0, 3.0, 4.0]]), probe)
    assert line == f"largest magnitude 36.00, in {where}; all finite, none all zero"


def test_integers_and_masks_are_not_the_largest() -> None:
    values = TensorStats(8, 0.5, 1.0, -2.0, 3.0, 4.0)
    filled = torch.tensor([0.0] * 6 + [-1e9] * 2)
    mask = TensorStats(8, filled.mean().item(), filled.std().item(), -1e9, 0.0, filled.norm().item(), zeros=6)
    line = "".join(first_lines(handmade("activations", {"": values, "fc": values, "mask": mask}), View()))
    assert line == "largest magnitude outside of masks 3.000, in fc; all finite, none all zero"
    report = handmade("inputs", {"": TensorStats(2, 60.0, 1.0, 50.0, 70.0, 90.0), "a": TensorStats(2)}, dtype="int64")
    assert first_lines(report, View()) == ["all finite, none all zero"]


def test_it_claims_no_more_than_holds() -> None:
    values, zero = TensorStats(2, 0.5, 1.0, -2.0, 3.0, 4.0), TensorStats(2, 0.0, 0.0, 0.0, 0.0, 0.0, zeros=2)
    infinite = TensorStats(2, 0.0, 0.0, 0.0, 0.0, 0.0, zeros=1, inf=1)
    lost = TensorStats(2, 1.0, 0.0, 1.0, 1.0, 1.0, nan=1)

    def says(*rows: TensorStats, **meta: Any) -> str:
        report = handmade("activations", {"": values} | {f"part{n}": row for n, row in enumerate(rows)})
        return "".join(first_lines(Report("activations", "net", (), report.rows, meta), View()))  # type: ignore[arg-type]

    largest = "largest magnitude 3.000, in (model); "
    assert says(zero, zero) == f"{largest}all finite, all zero in part0 and 1 more"
    assert says(lost, zero) == f"{largest}NaN or Inf in part0, all zero in part1"
    assert says(infinite, values) == "largest magnitude 3.000, in part1; infinite where meant in part0, none all zero"
    sparse = TensorStats(1000, 0.1, 0.1, 0.0, 1.0, 1.0, zeros=950)
    assert says(sparse, values) == "largest magnitude 3.000, in part1; all finite, 95.0% zero in part0"
    assert says(values, complete=False) == ""
    older = Row.from_flat(
        {"fqn": "a", "numel": 2, "mean": 1.0, "min": 1.0, "max": 1.0}, ("numel", "mean", "min", "max")
    )
    assert first_lines(Report("activations", "net", (), [older, older]), View()) == []


def test_a_verdict_stands_alone() -> None:
    dead = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    with torch.no_grad():
        dead[0].bias.fill_(-99)
    line = first(dead, torch.ones(2, 16), "activations")
    assert "all zero" in line and "largest" not in line


def test_of_gradients_it_names_the_smallest_and_the_largest_norm() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(5, 4)
    report = hookcli.capture(net, x, ["grads"], loss="sum")[0]
    net.double()(x.double()).sum().backward()
    norm = {name: p.grad.norm().item() for name, p in net.named_parameters() if p.grad is not None}
    low, high = min(norm, key=norm.__getitem__), max(norm, key=norm.__getitem__)
    (line,) = first_lines(report, View())
    expected = f"gradient norms of 4 parameters: {norm[low]:#.4g} ({low}) to {norm[high]:#.4g} ({high}), "
    assert line.startswith(expected) and line.endswith("; all finite, none all zero")
    assert float(line.split("ratio ")[1].split(";")[0]) == pytest.approx(norm[high] / norm[low], rel=1e-3)


def test_ranks_and_calls_are_named() -> None:
    def of(kind: str, **one: Any) -> str:
        stats = (TensorStats(2, 0.5, 1.0, -2.0, 3.0, norm) for norm in (4.0, 8.0))
        rows = [Row({"fqn": "fc", "kind": kind} | dict.fromkeys(one, n), x) for n, x in enumerate(stats)]
        return "".join(first_lines(Report("grads", "net", (), rows), View()))

    assert of("parameter", rank=True).startswith(
        "gradient norms of 1 parameter: 4.000 (fc on rank 0) to 8.000 (fc on rank 1), ratio 2.000"
    )
    assert of("output", call=True).startswith(
        "gradient norms of 2 outputs: 4.000 (fc) to 8.000 (2nd call of fc), ratio"
    )


def test_long_names_are_shortened_where_it_would_take_three_lines() -> None:
    names = [f"encoder.layers.encoder_layer_{n}.self_attention.out_proj.weight" for n in range(2)]
    rows = {name: TensorStats(2, 0.5, 1.0, -2.0, 3.0, float(n + 1)) for n, name in enumerate(names)}
    report = handmade("grads", rows, kind="parameter")
    (line,), (whole,) = first_lines(report, View(width=80)), first_lines(report, View())
    assert len(line) <= 160 < len(whole) and "…" in line and all(name in whole for name in names)


def test_where_it_begins_does_not_depend_on_the_order_of_rows() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Identity(), nn.ReLU6())
    report = hookcli.capture(net, torch.randn(3, 4) * 9, ["activations"])[0]
    backwards = View(sort="-index")
    assert first_lines(shown(report, backwards), backwards) == first_lines(report, View())
    assert first_lines(report, View())[0].count("in layer 0;") == 1
