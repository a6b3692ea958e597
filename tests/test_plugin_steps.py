"""A foreign probe without TensorStats in recorded steps: its table, its figures over time, the page, and its check."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from plugin_dist.hookcli_demo import OneSided, SignsProbe
from torch import nn

import hookcli
from hookcli import registry
from hookcli.errors import UsageError
from hookcli.record.file.page.record_page import RecordPage
from hookcli.record.file.ranks.merged_step import merge_steps
from hookcli.record.file.reading import Record, read_record
from hookcli.record.observe.recording_plan import check_probes

STEPS = 3
Cli = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    """The demo's probe and check, as if its distribution were installed."""
    found = registry._external()
    of_demo = [
        registry.Plugin("probes", "signs", "plugin_dist.hookcli_demo:SignsProbe", "demo"),
        registry.Plugin("checks", "SIGNS", "plugin_dist.hookcli_demo:OneSided", "demo"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_external", lambda: (*found, *of_demo))
        yield


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.layer(x) + self.layer(-x))


def net() -> Twice:
    torch.manual_seed(0)
    model = Twice()
    with torch.no_grad():
        model.last.bias.copy_(torch.tensor([100.0, -100.0]))  # the high half of `last` is never positive
    return model


def data() -> list[torch.Tensor]:
    return list(torch.randn(STEPS, 5, 4, generator=torch.Generator().manual_seed(1)))


def trained(model: nn.Module, batches: list[torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in batches:
        optimizer.zero_grad()
        for part in x[:3], x[3:]:  # two forwards
            model(part).sum().backward()
        optimizer.step()


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    path = tmp_path_factory.mktemp("signs") / "a.jsonl"
    model = net()
    with hookcli.watch(model, every=1, output=path, probes=["activations", "grads", "signs"], check=True):
        trained(model, data())
    return read_record(path)


def expected() -> list[dict[tuple[str, str], tuple[int, float]]]:
    """By step and half of a layer: the number of positive values in all calls, and the largest."""
    model, found = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in data():
        low = torch.cat([model.layer(part * sign) for part in (x[:3], x[3:]) for sign in (1, -1)])
        values = {"layer": low, "last": torch.cat([model(x[:3]), model(x[3:])])}
        halves = {(n, p): h for n, v in values.items() for p, h in zip(("low", "high"), v.chunk(2, -1), strict=True)}
        found.append({key: (int((h > 0).sum()), float(h.detach().max())) for key, h in halves.items()})
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    return found


def test_rows_of_all_calls_merge_by_their_columns_and_come_back_from_the_file(record: Record) -> None:
    steps = list(record.steps(record.entries))
    assert len(steps) == STEPS
    for step, right in zip(steps, expected(), strict=True):
        rows = {(row.fqn, row["path"]): row for row in step.rows("signs")}
        assert rows.keys() == right.keys()
        for key, row in rows.items():
            assert (row["positive"], row["calls"]) == (right[key][0], 4 if key[0] == "layer" else 2)
            assert row["largest"] == pytest.approx(right[key][1], rel=1e-5) and row.stats is None
            assert row["features"] == (3 if key[0] == "layer" else 1) and "call" not in row.values


def test_its_check_judges_the_steps(record: Record) -> None:
    for step in record.steps(record.entries):
        [verdict] = [report for report in step.reports if report.probe == "check"]
        assert [(one.check, one.fqn) for one in verdict.findings if one.check == "SIGNS"] == [("SIGNS", "last")]
    report = hookcli.check(net(), data()[0], select="SIGNS")
    assert [(one.check, one.fqn, one.value) for one in report.findings] == [("SIGNS", "last", 0)]


def test_show_has_its_table_and_its_figures_over_time(record: Record, cli: Cli) -> None:
    path = str(record.path)
    whole = cli("show", path)
    assert whole.code == 0 and "Positive" in whole.out and "Std" in whole.out, whole.err
    report = json.loads(cli("show", path, "--probe", "signs", "--step", "1", "-f", "json").out)["reports"][0]
    assert [row["positive"] for row in report["rows"]] == [v for v, _ in expected()[1].values()]
    asked = ("show", path, "--over-time", "largest", "--match", "layer")
    report = json.loads(cli(*asked, "-f", "json").out)["reports"][0]
    found = {c["title"]: [row[c["name"]] for row in report["rows"]] for c in report["columns"][2:]}
    assert found.keys() == {"layer low", "layer high"}
    assert found["layer high"] == pytest.approx([right["layer", "high"][1] for right in expected()], rel=1e-5)
    assert "layer high" in cli(*asked).out
    by_title = json.loads(cli("show", path, "--over-time", "std", "--match", "last", "-f", "json").out)["reports"][0]
    assert [c["title"] for c in by_title["columns"][2:]] == ["last"]
    for argv, said in (
        (("--over-time", "larger", "--match", "layer"), "did you mean largest?"),
        (("--over-time", "largest", "--match", "nothing*"), "no module or parameter matches 'nothing*'"),
        (("--match", "layer"), "add --over-time COLUMN"),
    ):
        assert said in cli("show", path, *argv).err
    assert cli("show", path, path).code == 0


def test_the_page_has_its_figures_by_place_and_step(record: Record) -> None:
    page = RecordPage(record)
    page.take()
    payload = page.payload()
    [track] = payload["steps"]["tracks"]
    places = [(module["fqn"], module["path"]) for module in track["modules"]]
    assert places[1:] == [(name, path) for name in ("layer", "last") for path in ("", "low", "high")]
    assert {"positive", "largest"} <= {one["name"] for one in track["statistics"]}
    assert payload["columns"]["largest"]["about"] == "signs" and "features" not in track["statistics"]


def test_ranks_merge_by_its_columns(record: Record) -> None:
    first, second, _ = record.steps(record.entries)
    [merged] = [report for report in merge_steps({0: first, 1: second}).reports if report.probe == "signs"]
    for row, one, other in zip(merged.rows, first.rows("signs"), second.rows("signs"), strict=True):
        assert row["positive"] == one["positive"] + other["positive"]
        assert row["largest"] == max(one["largest"], other["largest"]) and row["features"] == one["features"]


def test_a_probe_that_does_not_say_so_is_refused() -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UsageError, match="signs: needs a separate run"):
        patch.setattr(SignsProbe, "in_steps", False)
        check_probes(["signs"])
    assert OneSided.needs == ("signs",)
