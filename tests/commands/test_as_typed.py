"""Options accept what users type: parts of names, column titles in any case; COLUMNS sets a pipe's width."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from records import HEADER, end, recorded_step, save

from hookcli.table.names import name_filter

Cli = Callable[..., Any]
MODULES = {
    "": "Net",
    "conv": "Conv2d",
    "body": "Sequential",
    "body.0": "Conv2d",
    "body.conv_in": "Identity",
}


@pytest.mark.parametrize(
    ("pattern", "selected"),
    [
        ("conv", "conv"),  # a name as it is
        ("conv2d", "conv body.0"),
        ("Conv", "conv body.0 body.conv_in"),  # a part of a name or type, in any case
        ("CONV_", "body.conv_in"),
        ("body.*", "body.0 body.conv_in"),
        ("Conv*", ""),  # a glob is for names, and exact
        ("zz", ""),
    ],
)
def test_a_pattern_without_wildcards_that_is_no_name_is_a_part(pattern: str, selected: str) -> None:
    matches = name_filter(pattern, MODULES)
    assert [fqn for fqn, kind in MODULES.items() if matches(fqn, kind)] == selected.split()


def test_the_model_itself_has_the_name_that_tables_show() -> None:
    for pattern in ("(model)", ""):
        matches = name_filter(pattern, MODULES)
        assert [fqn for fqn, kind in MODULES.items() if matches(fqn, kind)] == [""]


def test_a_text_means_the_same_in_all_steps_of_two_records(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`body` is a name, although one step lacks its row and has only `body.0` and other names that contain it."""
    monkeypatch.chdir(tmp_path)
    for name, std in (("a", 1.0), ("b", 2.0)):
        step = recorded_step(0, std=std)
        reports = [replace(report, rows=[row for row in report.rows if row.fqn != "body"]) for report in step.reports]
        save(tmp_path / f"{name}.jsonl", (HEADER, replace(step, reports=reports), recorded_step(100), end()))
    assert cli("diff", "a.jsonl", "b.jsonl", "--match", "body*").code == 1
    assert cli("diff", "a.jsonl", "b.jsonl", "--match", "body").code == 0


NET = ("net.py:Net", "-i", "2x3x4x4")


def fqns(ran: Any) -> list[str]:
    assert ran.code == 0, ran.err
    return [row["fqn"] for row in csv.DictReader(io.StringIO(ran.out))]


def test_match_takes_a_part_in_every_command(cli: Cli, net: Path) -> None:
    assert fqns(cli("shapes", *NET, "--match", "onv", "-f", "csv")) == ["conv"]
    assert fqns(cli("activations", *NET, "--match", "relu", "-f", "csv")) == ["act"]
    assert sorted(fqns(cli("grads", *NET, "--match", "onv", "-f", "csv"))) == ["conv.bias", "conv.weight"]
    assert sorted(fqns(cli("grads", *NET, "--match", "LINEAR", "-f", "csv"))) == ["fc.bias", "fc.weight"]
    for side in ("a.json", "b.json"):
        assert cli("activations", *NET, "-o", side).code == 0
    assert (
        json.loads(cli("diff", "a.json", "b.json", "--match", "ReLU", "-f", "json").out)["reports"][0]["totals"][
            "compared"
        ]
        == 1
    )
    assert "no module or parameter matches 'zz'" in cli("diff", "a.json", "b.json", "--match", "zz").err


def test_run_records_the_modules_that_a_part_names(cli: Cli, net: Path) -> None:
    (net / "train.py").write_text(
        "import torch\nfrom net import Net\nnet = Net()\noptimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "for _ in range(2):\n    net(torch.ones(2, 3, 4, 4)).sum().backward()\n    optimizer.step()\n"
    )
    assert cli("run", "--every", "1", "--match", "2d", "-o", "a.run.jsonl", "train.py").code == 0
    assert fqns(cli("show", "a.run.jsonl", "-f", "csv")) == ["conv"]


def test_columns_and_sort_take_headings_in_any_case(cli: Cli, net: Path) -> None:
    ran = cli("shapes", *NET, "--columns", "Layer, output,MACs", "--sort", "-PARAMS", "-f", "csv")
    assert ran.out.splitlines()[0] == "fqn,output_shape,macs"
    assert fqns(ran)[:2] == ["", "fc"]
    for form in ("json", "markdown", "table"):
        assert cli("shapes", *NET, "--columns", "layer,Output,layer", "-f", form).code == 0
    ran = cli("activations", *NET, "--columns", "Layr")
    assert ran.code == 2 and "unknown column 'Layr'; did you mean Layer?" in ran.err


def test_a_wrong_choice_lists_the_choices(cli: Cli, net: Path) -> None:
    said = cli("shapes", *NET, "--fill", "one").err
    assert said == "hookcli: error: unknown --fill 'one'; did you mean ones? (choose from: ones, zeros, randn, rand)\n"
    assert "unknown --of 'x'; choose from: parameters, outputs, inputs" in cli("grads", *NET, "--of", "x").err


def test_a_package_in_the_working_directory(cli: Cli, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python itself does not look: the console script's path begins with the folder of the script."""
    (net / "own_package").mkdir()
    (net / "net.py").rename(net / "own_package" / "nets.py")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert cli("shapes", "own_package.nets:Net", "--input", "2x3x4x4").code == 0


def test_the_width_of_a_table_in_a_pipe(cli: Cli, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def widest(*argv: str) -> int:
        ran = cli(*argv)
        table = ran.out.partition("─\n")[2].split("\n\n")[0].splitlines()
        assert ran.code in (0, 1) and table, ran.err
        return max(len(line) for line in ran.out.splitlines() if "─" in line)

    assert widest("graph", *NET) <= 160
    assert widest("check", "--list") <= 160
    (names,) = re.findall(r"columns hidden \((.*)\); choose", cli("trace", *NET, "--summary").out)
    when = ("pre", "post")
    hidden = ["module_registration", "parameter_registration", *(f"optimizer_step_{side}" for side in when)]
    if hasattr(torch.autograd.graph, "node_creation_hook"):  # else there is room for one column more
        hidden.append("state_dict_post")
    hidden += [f"{of}state_dict_{side}" for of in ("load_", "optimizer_", "optimizer_load_") for side in when]
    more = [f"{len(hidden) - 10} more"] if len(hidden) > 10 else []
    assert names.split(", ") == [*hidden[:10], *more]
    monkeypatch.setenv("COLUMNS", "72")
    assert widest("graph", *NET) <= 72
    assert "\x1b" not in cli("graph", *NET).out
    header = cli("graph", *NET, "-f", "csv").out.splitlines()[0]
    assert len(header) > 160
