"""`hookcli report`: one page of one run, in a file that is checked before the run."""

from __future__ import annotations

import json
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(self.drop(self.norm(self.conv(x)).relu()).mean((2, 3)))


class Broken(Net):
    def forward(self, x):
        return super().forward(x) @ torch.ones(3, 3)


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)


class Plain(nn.Module):
    def forward(self, x):
        return x * 2
"""
INPUT = ("--input", "4x3x8x8")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "net", raising=False)
    return tmp_path


def reports_of(path: Path) -> dict[str, Any]:
    found = {}
    for report in json.loads(path.read_text())["reports"]:
        rows = report["rows"]
        of = f" of {rows[0]['kind']}s" if report["probe"] == "grads" and rows else ""
        found[f"{report['probe']}{of}"] = report
    return found


def without_index(items: Any) -> Any:
    """Rows without their place among the events of a run, which more gradients have where both kinds are looked at."""
    return [{k: v for k, v in item.items() if k != "index"} for item in items] if isinstance(items, list) else items


def test_the_page_is_named_after_the_model_and_replaces_only_a_page(cli: Cli, place: Path) -> None:
    for _ in range(2):
        ran = cli("report", "net.py:Net", *INPUT)
        assert (ran.code, ran.out) == (0, "") and ran.err.startswith("hookcli: wrote Net.html: "), ran.err
    assert "<html" in (place / "Net.html").read_text()
    (place / "Net.html").write_text("mine")
    ran = cli("report", "net.py:Net", *INPUT)
    assert ran.code == 2 and "Net.html exists and is not a page of hookcli's" in ran.err
    assert (place / "Net.html").read_text() == "mine"


def test_stdout_gets_the_report_where_it_is_asked_for(cli: Cli, place: Path) -> None:
    text = cli("report", "net.py:Net", *INPUT, "--format", "json")
    page = cli("report", "net.py:Net", *INPUT, "--output", "/dev/stdout")
    assert (text.code, text.err, page.code, page.err) == (0, "", 0, "")
    assert {r["probe"] for r in json.loads(text.out)["reports"]} >= {"check", "shapes", "activations", "grads"}
    assert page.out.startswith("<!doctype html>") and not list(place.glob("*.html"))


def test_figures_are_those_of_the_commands(cli: Cli, place: Path) -> None:
    assert cli("report", "net.py:Net", *INPUT, "--loss", "sum", "--output", "page.json").code == 0
    found = reports_of(place / "page.json")
    alone = {
        "shapes": ("shapes", "--train"),
        "activations": ("activations", "--hist", "--train"),
        "grads of parameters": ("grads", "--hist", "--loss", "sum"),
        "grads of outputs": ("grads", "--hist", "--of", "outputs", "--loss", "sum"),
        "check": ("check", "--loss", "sum"),
    }
    assert found.keys() == alone.keys() | {"parameters", "flow", "settings"}
    for name, (command, *options) in alone.items():
        ran = cli(command, "net.py:Net", *INPUT, *options, "--format", "json")
        (expected,) = json.loads(ran.out)["reports"]
        for key in ("columns", "rows", "totals", "skipped", "findings"):
            assert without_index(found[name][key]) == without_index(expected[key]), (name, key)
        assert found[name]["meta"].keys() >= expected["meta"].keys() - {"next"}


def test_parameters_are_those_before_the_run(cli: Cli, place: Path) -> None:
    import net  # type: ignore[import-not-found]
    import torch

    assert cli("report", "net.py:Net", *INPUT, "--output", "page.json").code == 0
    torch.manual_seed(0)
    held = dict(net.Net().named_parameters()) | {
        name: x for name, x in net.Net().named_buffers() if x.is_floating_point()
    }
    rows = {row["fqn"]: row for row in reports_of(place / "page.json")["parameters"]["rows"]}
    assert rows.keys() == held.keys() and {rows["norm.running_mean"]["kind"], rows["fc.bias"]["kind"]} == {
        "buffer",
        "parameter",
    }
    for name, x in held.items():
        row, wide = rows[name], x.detach().double()
        assert (row["shape"], row["requires_grad"]) == (list(x.shape), x.requires_grad)
        assert row["mean"] == pytest.approx(wide.mean().item(), rel=1e-6, abs=1e-6 * wide.abs().mean().item())
        assert row["l2"] == pytest.approx(wide.norm().item(), rel=1e-6)
        assert sum(row["hist"]["negative"]) == (wide < 0).sum() and sum(row["hist"]["positive"]) == (wide > 0).sum()


def test_a_file_that_cannot_be_written_is_found_before_the_run(cli: Cli, place: Path) -> None:
    ran = cli("report", "nothing.py:There", "--output", "gone/x.html")
    assert ran.code == 2 and "--output gone/x.html: can't write to gone/" in ran.err
    Path("circle.html").symlink_to("circle.html")
    ran = cli("report", "nothing.py:There", "--output", "circle.html")
    assert ran.code == 2 and "--output circle.html: can't write" in ran.err
    for form in ("sarif", "svg", "hist"):
        ran = cli("report", "nothing.py:There", "--output", "page.x", "--format", form)
        assert ran.code == 2 and f"--format {form}: only for `hookcli " in ran.err
    ran = cli("report", "net.py:Net", *INPUT, "--format", "json", "--open")
    assert ran.code == 2 and "--open: " in ran.err


def test_a_crash_leaves_the_page_of_what_was_seen(cli: Cli, place: Path) -> None:
    ran = cli("report", "net.py:Broken", *INPUT, "--output", "broken.json")
    assert ran.code == 2 and "mat1 and mat2" in ran.err
    found = reports_of(place / "broken.json")
    assert [f["check"] for f in found["check"]["findings"]] == ["HK001"]
    assert {row["fqn"] for row in found["activations"]["rows"]} == {"conv", "norm", "drop", "fc"}
    assert found["activations"]["meta"]["complete"] is False


def test_an_edit_changes_the_run_but_not_the_shapes(cli: Cli, place: Path) -> None:
    ran = cli("report", "net.py:Net", *INPUT, "--edit", "norm:output=zero", "--output", "page.json")
    assert ran.code == 0, ran.err
    found = reports_of(place / "page.json")
    assert {row["l2"] for row in found["activations"]["rows"] if row["fqn"] in ("norm", "drop")} == {0}
    assert found["activations"]["meta"]["edits"] == ["norm:output=zero"] and "edits" not in found["shapes"]["meta"]


def test_a_saved_report_becomes_a_page(cli: Cli, place: Path) -> None:
    assert cli("activations", "net.py:Net", *INPUT, "--output", "before.json").code == 0
    ran = cli("report", "before.json")
    assert ran.code == 0 and "wrote before.html: " in ran.err and "conv" in (place / "before.html").read_text()
    ran = cli("report", "net.py")
    assert ran.code == 2 and "Traceback" not in ran.err


def test_open(cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or False)
    ran = cli("report", "net.py:Net", *INPUT, "--open")
    assert ran.code == 0 and opened == [(place / "Net.html").as_uri()] and "no browser found: open Net.html" in ran.err


@pytest.mark.parametrize("model", ["net.py:Frozen", "net.py:Plain"])
def test_nothing_to_differentiate(cli: Cli, place: Path, model: str) -> None:
    ran = cli("report", model, *INPUT, "--output", "page.json")
    assert ran.code == 0, ran.err
    assert {"check", "shapes", "activations"} <= reports_of(place / "page.json").keys()


def test_the_meta_device_has_shapes_alone(cli: Cli, place: Path) -> None:
    ran = cli("report", "net.py:Net", *INPUT, "--device", "meta", "--output", "page.json")
    assert ran.code == 0, ran.err
    found = reports_of(place / "page.json")
    assert found["shapes"]["totals"]["params"] == 3 * 8 * 9 + 8 + 16 + 36 and "activations" not in found
