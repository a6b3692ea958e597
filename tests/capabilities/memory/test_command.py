"""hookcli memory: what people type, what they see, and figures that can be computed by hand."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from commands.shown import on_terminal
from torch import nn

import hookcli
from hookcli.commands.room import parse_room
from hookcli.table.formatting import size

Cli = Callable[..., Any]
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(2))
        self.head = nn.Linear(64, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
"""
PARAMETERS = 4 * (2 * (64 * 64 + 64) + 64 * 4 + 4)
INPUT = ("net.py:Net", "--input", "32x64")
ANY_BATCH = ("net.py:Net", "--input", "1x64")


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)


_found: dict[tuple[str, ...], Any] = {}


def report(cli: Cli, *arguments: str, given: tuple[str, ...] = INPUT) -> Any:
    """The report of these arguments, which is made once."""
    typed = (*given, *arguments)
    if typed not in _found:
        ran = cli("memory", *typed, "--format", "json")
        assert ran.code == 0, ran.err
        [_found[typed]] = json.loads(ran.out)["reports"]
    return _found[typed]


@pytest.mark.sweep
def test_weights_must_fit_and_change_nothing(cli: Cli) -> None:
    model: torch.nn.Module = runpy.run_path("net.py")["Net"]()
    torch.save({"net": model.state_dict()}, "w.pt")
    found = report(cli, "--weights", "w.pt")
    assert found["rows"] == report(cli)["rows"] and found["meta"]["weights"] == "w.pt"
    torch.save({"net": {"head.bias": torch.ones(4)}}, "w.pt")
    ran = cli("memory", *INPUT, "--weights", "w.pt")
    assert ran.code == 2 and "--weights w.pt does not fit the model: missing 5" in ran.err
    assert cli("memory", *INPUT, "--weights", "w.pt", "--no-strict").code == 0


def test_rows_add_up_to_the_peak(cli: Cli) -> None:
    found = report(cli)
    totals, rows = found["totals"], found["rows"]
    assert sum(row["bytes"] for row in rows) == totals["peak_bytes"]
    assert all(sum(v for k, v in row.items() if k.endswith("_bytes")) == row["bytes"] for row in rows)
    assert sum(row["param_bytes"] for row in rows) == PARAMETERS
    scalars = 4 * 6  # AdamW's step counts
    assert sum(row["optimizer_bytes"] for row in rows) == 2 * PARAMETERS + scalars
    assert totals["peak_bytes"] == max(v for k, v in totals.items() if k in [f"{p}_peak_bytes" for p in PHASES])


PHASES = ("forward", "loss", "backward", "step")


def test_a_forward_alone_needs_parameters_and_four_tensors(cli: Cli) -> None:
    """An operator's input and result, what forward's `x` is meanwhile, and the model's input, which the caller has."""
    x = 32 * 64 * 4
    assert report(cli, "--inference")["totals"]["peak_bytes"] == PARAMETERS + 4 * x


def test_the_timeline_is_in_order_and_stacks_up(cli: Cli) -> None:
    peak = report(cli)["totals"]["peak_bytes"]
    found = report(cli, "--timeline")
    rows = found["rows"]
    assert max(row["highest"] for row in rows) == peak and [row["index"] for row in rows] == [*range(len(rows))]
    kinds = [k for k in rows[0] if k.endswith("_bytes") and k != "change_bytes"]
    assert all(sum(row[kind] for kind in kinds) == row["highest"] for row in rows)
    assert [*dict.fromkeys(row["phase"] for row in rows)] == [*PHASES]
    after = [row["bytes"] for row in rows]
    assert [b - a for a, b in pairwise(after)] == [row["change_bytes"] for row in rows[1:]]
    grouped = cli("memory", *INPUT, "--timeline", "--depth", "1").out
    assert re.search(r"^backward +layers.1 ", grouped, re.M) and re.search(r"^step +\(optimizer\)", grouped, re.M)


def test_the_largest_batch_fits_and_the_next_does_not(cli: Cli) -> None:
    on_cpu = ("--inference", "--device", "cpu", "--reserve")
    found = report(cli, "--fits", "200kB", *on_cpu, "90kB+5%", given=ANY_BATCH)
    largest = (100_000 - PARAMETERS) // (4 * 64 * 4)  # see above
    peaks = {row["batch"]: row["highest"] for row in found["rows"]}
    assert found["totals"]["largest_batch"] == largest and peaks[largest] <= 100_000 < peaks[largest + 1]
    assert (found["totals"]["limit_bytes"], found["totals"]["reserve_bytes"]) == (200_000, 100_000)
    assert [row["left_bytes"] for row in found["rows"]] == [100_000 - row["highest"] for row in found["rows"]]
    assert found["totals"]["verdict"].startswith(
        f"Largest batch in 200kB: {largest:,}, with 97.66 KiB kept free (--reserve 90kB+5%); a batch of"
    )
    uncounted = "kept free for what is not counted: the interpreter, memory of libraries and fragmentation"
    assert found["meta"]["notes"][-1] == uncounted
    both = cli("memory", *ANY_BATCH, "--fits", "100kB", *on_cpu, "0", "--nproc", "2").out
    assert re.match(
        r"Largest batch in 100kB: (\d+) for each of 2 processes, (\d+) in all, with nothing kept free", both
    )
    assert "Nothing fits into 1KiB, with 512 B kept free" in cli("memory", *ANY_BATCH, "--fits", "1KiB").out
    gib, g = (
        report(cli, "--fits", text, given=ANY_BATCH)["totals"] for text in ("0.0005GiB", "0.0005G")
    )  # as ulimit and containers do
    assert g["limit_bytes"] == gib["limit_bytes"] == int(0.0005 * 2**30) and g["largest_batch"] == gib["largest_batch"]
    assert g["verdict"].startswith("Largest batch in 0.0005G: ")


@pytest.mark.parametrize("batch", [2, 5000])
def test_the_batch_that_was_typed_is_answered_first(cli: Cli, batch: int) -> None:
    found = report(cli, "-b", str(batch), "--fits", "1MiB", "--reserve", "0")
    peak = report(cli, "-b", str(batch), "--device", "cuda")["totals"]["peak_bytes"]
    largest, verdict = found["totals"]["largest_batch"], found["totals"]["verdict"]
    assert {row["batch"]: row["highest"] for row in found["rows"]}[batch] == peak
    if batch == 2:
        assert peak < 2**20 and verdict.startswith(f"A batch of 2 fits into 1MiB: {size(peak)} of 1 MiB usable (")
        assert f"left); the largest is {largest:,}, with nothing kept free (--reserve 0)" in verdict
    else:
        assert peak > 2**20 and verdict.startswith(f"A batch of 5,000 does not fit into 1MiB: {size(peak)} of 1 MiB us")
        assert verdict.endswith(f"; {largest:,} does, with nothing kept free (--reserve 0)")


def test_a_batch_that_processes_divide_is_answered_whole(cli: Cli) -> None:
    both = cli("memory", *INPUT, "-b", "6", "--nproc", "2", "--fits", "1MiB").out
    assert both.startswith("A batch of 6 (3 for each of 2 processes) fits into 1MiB: ")
    largest = re.search(r"the largest is ([\d,]+) for each of 2 processes, ([\d,]+) in all, with", both)
    assert largest and both.rstrip().endswith(f"--batch-size {largest[2].replace(',', '')} --nproc 2")
    nothing = cli("memory", *INPUT, "-b", "6", "--fits", "1KiB").out
    assert nothing.startswith("A batch of 6 does not fit into 1KiB: ") and "; nothing does, with 512 B kept" in nothing


@pytest.mark.sweep
def test_a_caption_says_of_which_device_the_memory_is(cli: Cli) -> None:
    assert " · memory of cpu · " in cli("memory", *INPUT).out.splitlines()[1]
    assert " · memory of cuda · " in cli("memory", *INPUT, "--device", "cuda").out.splitlines()[1]


def test_where_every_batch_fits_none_is_advised(cli: Cli) -> None:
    first, *_, last = cli("memory", *ANY_BATCH, "--fits", "64TiB").out.splitlines()
    assert first == "Every batch that was tried, up to 1,048,576, fits into 64TiB"
    assert last.startswith("Next: hookcli memory net.py:Net --device cuda") and "--batch-size" not in last


def test_what_fits_is_a_gpu_s_and_leaves_room_for_its_context(cli: Cli) -> None:
    found = report(cli, "--fits", "1MiB", given=ANY_BATCH)
    assert found["meta"]["simulated"] == "cuda" and found["totals"]["reserve_bytes"] == 2**19
    assert "with 512 KiB kept free (half of it; see --reserve); a batch of" in found["totals"]["verdict"]
    uncounted = "kept free for what is not counted: the CUDA context, workspaces of libraries and fragmentation"
    assert found["meta"]["notes"][-1] == uncounted
    assert sum("CUDA context" in note for note in found["meta"]["notes"]) == 1
    *_, last = cli("memory", *INPUT, "--fits", "1MiB").out.splitlines()
    largest = found["totals"]["largest_batch"]
    assert last == f"Next: hookcli memory net.py:Net --device cuda --input 32x64 --batch-size {largest}"
    assert parse_room("24GiB", None, "cuda").usable == 24 * 2**30 - int(2**30 + 0.05 * 24 * 2**30)
    assert parse_room("24GiB", "+300MiB", "cuda").usable == 24 * 2**30 - int(2**30 + 0.05 * 24 * 2**30 + 300 * 2**20)


def test_checkpointing_says_what_it_saves_and_costs(cli: Cli) -> None:
    plain = report(cli, "-b", "4096", "--optimizer", "none")["totals"]["peak_bytes"]
    totals = report(cli, "-b", "4096", "--optimizer", "none", "--checkpoint", "layers.*")["totals"]
    assert totals["plain_peak_bytes"] == plain > totals["peak_bytes"]
    assert (
        totals["recomputed_macs"] == 4096 * 64 * 64 * 2 and "2 modules (layers.0, layers.1)" in totals["checkpointing"]
    )


def test_processes_divide_the_batch_and_what_they_share(cli: Cli) -> None:
    alone, both = report(cli, "-b", "16", "--timeline"), ("-b", "32", "--nproc", "2", "--parallel")
    ddp, fsdp = (report(cli, *both, parallel) for parallel in ("ddp", "fsdp"))
    assert ddp["totals"]["peak_bytes"] == alone["totals"]["peak_bytes"] + PARAMETERS
    last = {name: found["rows"][-1] for name, found in (("alone", alone), ("fsdp", fsdp))}
    for kind in ("param_bytes", "grad_bytes", "optimizer_bytes"):
        assert last["fsdp"][kind] == last["alone"][kind] // 2
    blocks = [row["param_bytes"] - PARAMETERS // 2 for row in fsdp["rows"] if row["fqn"] == "layers.1.0"]
    assert blocks and max(blocks) >= 2 * 4 * (64 * 64 + 64) and fsdp["meta"]["notes"]


@pytest.mark.sweep
def test_charts_pictures_and_pages_show_the_timeline(cli: Cli, tmp_path: Path) -> None:
    chart = cli("memory", *INPUT, "--format", "chart").out
    assert re.search(r"^ *forward .*backward .*step$", chart, re.M) and chart.startswith("Peak at batch 32, train: ")
    assert cli("memory", *INPUT, "-o", "a.svg").code == 0 and "Optimizer" in (tmp_path / "a.svg").read_text()
    assert cli("memory", *INPUT, "-o", "a.html").code == 0
    page = (tmp_path / "a.html").read_text()
    assert "uPlot" in page and "Over the step" in page
    lines = on_terminal(80, "memory", *INPUT, "--format", "chart", both=True, LINES="24").splitlines()
    assert len(lines) < 24 and any("┤" in line for line in lines), lines


def test_a_gpu_that_is_not_at_hand(cli: Cli) -> None:
    """AdamW's `foreach` takes a root of each second moment; blocks of 512 bytes."""
    ran = cli("memory", *INPUT, "-b", "2", "--device", "cuda")
    assert " · memory of cuda · adamw\n" in ran.out and "not included: workspaces of cuBLAS and cuDNN" in ran.out
    blocks = 2 * (4 * 64 * 64 + 512) + 4 * 64 * 4 + 512
    assert report(cli, "-b", "2", "--device", "cuda")["totals"]["step_peak_bytes"] == 5 * blocks + 512


def test_rows_of_some_modules(cli: Cli) -> None:
    found = report(cli, "--type", "Linear", "--match", "layers.*")
    assert [row["fqn"] for row in found["rows"]] == ["layers.0.0", "layers.1.0"]
    assert found["totals"] == report(cli)["totals"]


def test_a_model_that_runs_for_real_is_said_to(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET.replace("return self.head(x)", "return self.head(x * float(x.sum() > 0))"))
    ran = cli("memory", *INPUT, "--device", "cuda")
    assert "ran for real, not on the meta device: " in ran.out and " · cpu · " in ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    {
        ("--fits", "24"): "--fits 24: give a size, such as 24GiB",
        ("--vram", "24GiB"): "unknown option '--vram'; did you mean --fits?",
        ("--seq-len", "512"): "unknown option '--seq-len'; did you mean --input Nx512:int64?",
        ("--fits", "24GO"): "--fits 24GO: give a size, such as 24GiB",
        ("--fits", "1e400"): "--fits 1e400: give a size, such as 24GiB",
        ("--fits", "1e308TB"): "--fits 1e308TB: give a size, such as 24GiB",
        ("--reserve", "1GiB"): "--reserve 1GiB: only --fits keeps memory free; give both",
        ("--fits", "8GiB", "--reserve", "300"): "--reserve 300: give a size or a share of --fits, such as 2GiB",
        ("--fits", "8GiB", "--reserve", "1GiB+-5%"): "--reserve 1GiB+-5%: give a size or a share",
        ("--fits", "8GiB", "--reserve", ""): "--reserve: a value is missing; give --reserve BYTES",
        ("--fits", "8GiB", "--reserve", "100%"): "--reserve 100% leaves nothing of --fits 8GiB: keep less free",
        ("--fits", "1GiB", "-b", "3", "--nproc", "2"): "a batch of 3 does not divide by 2 processes",
        ("--checkpoint", "layer.*"): "--checkpoint: no module matches 'layer.*'; did you mean 'layers.0'",
        ("--checkpoint", "model.layers.*"): "no module matches 'model.layers.*'; did you mean 'layers.*'?",
        ("--checkpoint", "0.?"): "no module matches '0.?'; did you mean '*.0.?'?",
        ("--fits", "1GiB", "--timeline"): "--timeline and --fits: the search for a batch has no timeline",
        ("--parallel", "fsdp"): "--parallel fsdp: needs several processes; give --nproc N",
        ("--inference", "--optimizer", "sgd"): "--optimizer sgd: --inference has neither backward nor a step",
        ("--amp", "float64"): "unknown --amp 'float64'",
        ("--optimizer", "adamq"): "unknown --optimizer 'adamq'",
        ("--optimizer", "adanw"): "did you mean adamw",
        ("--ops", "aten"): "unknown --ops 'aten'; choose from: functions",
        ("--device", "gpu"): "unknown --device 'gpu'; did you mean cpu? (choose from: cpu, cuda)",
        ("--match", "nose"): "--match: no module or parameter matches 'nose'",
        ("--fits", "1GiB", "--match", "head"): "--match head: --fits has a row for each batch; leave one out",
        ("--nproc", "3", "-b", "4"): "a batch of 4 does not divide by 3 processes",
    }.items(),
)
def test_mistakes(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    ran = cli("memory", *INPUT, *arguments)
    assert ran.code == 2 and said in ran.err and not ran.out


def test_a_model_without_operators_takes_its_input(cli: Cli) -> None:
    for more in ((), ("--timeline",)):
        ran = cli("memory", "torch.nn:Identity", "--input", "2x3", "--inference", *more, "--format", "json")
        assert json.loads(ran.out)["reports"][0]["totals"]["peak_bytes"] == 2 * 3 * 4


def test_a_budget_for_check(cli: Cli) -> None:
    peak = report(cli, "--optimizer", "sgd")["totals"]["peak_bytes"]
    asked = ("check", *INPUT, "--select", "HK033", "--optimizer", "sgd", "--max-peak-memory")
    assert cli(*asked, str(peak)).code == 0
    ran = cli(*asked, str(peak - 1))
    assert ran.code == 1 and "in use at the peak, in " in ran.out
    *_, last = ran.out.splitlines()
    assert last == "Next: hookcli memory net.py:Net --input 32x64 --optimizer sgd"
    torch.save(torch.ones(32, 64), "x.pt")
    ran = cli("check", "net.py:Net", "--input-file", "x.pt", *asked[4:], "1", "--no-cache")
    assert ran.code == 1 and ran.out.splitlines()[-1] == "Next: hookcli explain HK033"


def test_parts_in_eval_mode_stay_in_it() -> None:
    def peak(*parts: nn.Module) -> int:
        model = nn.Sequential(nn.Linear(64, 64), *parts)
        settings: Any = {"select": ["HK033"], "thresholds": {"HK033": 1}}
        [finding] = hookcli.check(model, torch.ones(512, 64), **settings).findings
        return int(finding.value or 0)

    evaluated = peak(nn.Dropout().eval(), nn.Tanh())
    assert evaluated == peak(nn.Identity(), nn.Tanh()) < peak(nn.Dropout(), nn.Tanh())
