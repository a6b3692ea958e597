"""`--time`: columns of times, in every format; each figure is that of tests/engine/test_timing.py."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands.value_commands import Cli, rows
from engine.timed_models import stopped_clock

NET = """
from time import sleep
import torch
from torch import nn

class Slow(nn.Module):
    def forward(self, x):
        sleep(0.004)
        return x

def net():
    return nn.Sequential(nn.Linear(4, 4), Slow(), nn.Sequential(Slow(), Slow()), nn.Linear(4, 4))
"""


@pytest.fixture
def net(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "slow.py").write_text(NET)
    return (f"{tmp_path / 'slow.py'}:net", "--input", "2x4", "--quiet")


@pytest.mark.parametrize("command", ["shapes", "activations"])
def test_what_sleeps_takes_the_time(cli: Cli, net: tuple[str, ...], command: str) -> None:
    began = time.perf_counter()
    ran = cli(command, *net, "--time", "--format", "json")
    elapsed = time.perf_counter() - began
    report = json.loads(ran.out)["reports"][0]
    found = {row["fqn"]: row for row in report["rows"]}
    assert report["meta"]["device"] == "cpu" and ran.code == 0
    assert found["1"]["forward_us"] >= 4000 and found["2"]["forward_us"] >= 8000 > 2 * found["2"]["forward_self_us"]
    assert report["totals"]["forward_us"] == found[""]["forward_us"] >= 12_000
    assert found[""]["forward_us"] < elapsed * 1e6
    alone = sum(row["forward_self_us"] for row in report["rows"])
    assert alone == pytest.approx(found[""]["forward_us"])
    assert {column["unit"] for column in report["columns"] if column["name"].endswith("_us")} == {"microseconds"}


def test_a_narrow_table_keeps_the_times(cli: Cli, net: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = cli("grads", *net, "--of", "outputs", "--time").out
    assert "Forward" in out and "Backward" in out and "self µs" in out
    assert re.search(r"· forward \d", " ".join(out.split()))  # of a line that may break
    assert max(map(len, out.splitlines())) <= 80
    rows = cli("shapes", *net, "--time", "--sort", "-forward_self_us", "--columns", "type", "-f", "csv").out.split()
    assert rows[1:4] == ["Slow"] * 3


def test_columns_of_times_are_chosen_by_name_or_heading(cli: Cli, net: tuple[str, ...]) -> None:
    out = cli("activations", *net, "--time", "--columns", "fqn,forward self µs", "-f", "csv").out
    assert out.splitlines()[0] == "fqn,forward_self_us"


def test_a_page_of_times(cli: Cli, net: tuple[str, ...], tmp_path: Path) -> None:
    assert cli("shapes", *net, "--time", "-o", str(tmp_path / "a.html")).code == 0
    assert "forward_self_us" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--device", "meta"), "--time: nothing is computed on the meta device; remove --device meta"),
        (("--nproc", "2"), "--time: times one process; remove --nproc"),
    ],
)
def test_what_can_t_be_timed(cli: Cli, net: tuple[str, ...], more: tuple[str, ...], said: str) -> None:
    ran = cli("activations", *net, "--time", *more)
    assert ran.code == 2 and said in ran.err and not ran.out


def test_without_the_option_there_are_no_times(cli: Cli, net: tuple[str, ...]) -> None:
    ran = cli("activations", *net, "--sort", "-forward_us")
    assert ran.code == 2 and "--sort: forward_us needs --time" in ran.err
    assert not any("forward_us" in row for row in rows(cli("activations", *net, "-f", "json").out))


def test_both_sides_of_a_comparison(
    cli: Cli, net: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that only the models move, as nothing bounds what a busy machine takes."""
    clock = stopped_clock(monkeypatch)
    monkeypatch.setitem(
        sys.modules, "stopped", SimpleNamespace(sleep=lambda s: setattr(clock, "time", clock.time + s * 1e6))
    )
    text = NET.replace("from time", "from stopped")
    (tmp_path / "slow.py").write_text(text)
    (tmp_path / "slower.py").write_text(text.replace("0.004", "0.009"))
    (model, *options), other = net, f"{tmp_path / 'slower.py'}:net"
    ran = cli("diff", model, other, *options, "--time", "-f", "json")
    report = json.loads(ran.out)["reports"][0]
    assert ran.code == 0 and not ran.err
    assert report["totals"]["times"].startswith("forward 12 ms → 27 ms (2.2x); slower in B: ")
    times = ("a_forward_us", "a_forward_self_us", "b_forward_us", "b_forward_self_us", "slowdown")
    assert {row["fqn"]: tuple(map(row.get, times)) for row in report["rows"] if row["fqn"] in ("", "1", "2")} == {
        "": pytest.approx((12_000, 0, 27_000, 0, 2.25)),
        "1": pytest.approx((4000, 4000, 9000, 9000, 2.25)),
        "2": pytest.approx((8000, 0, 18_000, 0, 2.25)),
    }
    again = cli("diff", model, model, *options[:-1], "--time", "-f", "csv")
    assert again.code == 0 and "forward " in again.err and "a_forward_us" in again.out
    ran = cli("diff", model, "a.json", "--time")
    assert ran.code == 2 and "--time: both sides must be models, not saved reports" in ran.err
