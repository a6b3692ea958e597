"""Capabilities of other distributions with faults: each costs a line that names it, and the rest works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import forks
import pytest

import hookcli

PACKAGE = Path(hookcli.__file__).parent
NET = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
"""
TRAIN = """
import torch
from net import Net

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((4, 4), 1.0 if step < 2 else float("inf"))).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def install(folder: Path, manifests: dict[str, str], code: str = "") -> None:
    """Put the distribution "odd 1" into the folder: manifests by the names of capabilities, and its module `odd`."""
    info = folder / "odd-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    entries = "\n".join(f"{name} = odd_manifests:{name}" for name in manifests)
    (info / "entry_points.txt").write_text(f"[hookcli.capabilities]\n{entries}\n")
    lines = [f"{name} = Capability(name='{name}', page='', {fields})" for name, fields in manifests.items()]
    imported = "from hookcli.registry.capability import Capability, RecorderOption"
    (folder / "odd_manifests.py").write_text("\n".join([imported, *lines, ""]))
    (folder / "odd.py").write_text(code)


def hookcli_lines(folder: Path, *lines: str) -> list[tuple[str, str, str]]:
    """Run these command lines in one process, in turn. Returns the exit code, stdout and stderr of each."""
    script = f"""if True:
        import sys
        from hookcli.cli import main
        for line in {list(lines)!r}:
            code = main(line.split())
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                print(f"<{{code}}>", end="=====", file=stream)
                stream.flush()
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (PACKAGE.parent, folder)))}
    words = [sys.executable, "-c", script]
    ran = forks.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    both = zip(ran.stdout.split("=====")[:-1], ran.stderr.split("=====")[:-1], strict=True)
    return [(out.rpartition("<")[2][:-1], out.rpartition("<")[0], err.rpartition("<")[0]) for out, err in both]


def recorded(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of train.py."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (PACKAGE.parent, folder)))}
    words = [sys.executable, "-m", "hookcli", "run", *options, "train.py"]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)


PARTS = """
from hookcli.record.observe.parts import RecorderPart, StepPart

class Shadowed(StepPart):
    def __init__(self):
        self.found = []

class Texts(StepPart):
    def lines(self, step, *, scaled):
        return ["text"]

class Shadowing(RecorderPart):
    def begin_step(self, step):
        return Shadowed()

class Texting(RecorderPart):
    def begin_step(self, step):
        return Texts()

class Bare(RecorderPart):
    notes = ()
"""


def test_a_failing_part_of_a_recorder_is_named_and_takes_no_other_out(net: Path) -> None:
    parts = {"shadowing": "Shadowing", "texting": "Texting", "bare": "Bare"}
    install(net, {name: f"recorder='odd:{kind}'" for name, kind in parts.items()}, PARTS)
    ran = recorded(net, "--first-bad", "report")
    why = {
        "shadowing": "TypeError: 'list' object is not callable",
        "texting": "TypeError: lines() returned str among its lines",
        "bare": "TypeError: 'tuple' object is not callable",
    }
    for name, error in why.items():
        told = f"{name} (from odd 1): left out from here on, since it failed ({error}); the rest is recorded"
        assert ran.stderr.count(f"warning: Net: {told}") + ran.stderr.count(f"warning: {told}") == 1, ran.stderr
    assert "bug in hookcli" not in ran.stderr and ran.returncode == 0
    assert "first non-finite value: " in ran.stderr and "3 recorded steps" in ran.stderr


PROBES = """
from hookcli.checks.base import Check
from hookcli.probes.base import Probe
from hookcli.table import Column, Row

class Seeing(Probe):
    name = "seeing"
    columns = (Column("fqn", "Layer"),)

    def attach(self, session):
        session.forward(self.see)

    def see(self, event):
        raise KeyError("seen")

    def rows(self):
        return []

class Attaching(Seeing):
    name = "attaching"

    def attach(self, session):
        raise SystemExit(3)

class Reporting(Seeing):
    name = "reporting"
    values = False

    def see(self, event):
        pass

    def rows(self):
        return [3]

class Odd(Check):
    id = "ODD1"
    name = "odd"
    means = advice = "that"
    needs = ("seeing", "attaching")

    def judge(self, measured):
        raise RuntimeError("unmeasured")
"""


def test_a_probe_that_fails_is_left_out_of_checks_and_pages(net: Path) -> None:
    manifests = {
        "seeing": "probe='odd:Seeing', checks={'ODD1': 'odd:Odd'}",
        "attaching": "probe='odd:Attaching'",
        "reporting": "probe='odd:Reporting', view='odd_page:part.js'",
        "probeless": "view='odd_page:part.js'",
    }
    install(net, manifests, PROBES)
    (net / "odd_page").mkdir()
    (net / "odd_page" / "__init__.py").touch()
    (net / "odd_page" / "part.js").write_text('import { addPart } from "./parts.js";\n')
    lines = ("check net.py:Net -i 4x4", "report net.py:Net -i 4x4 -o page.json")
    (code, out, err), (made, _, told) = hookcli_lines(net, *lines)
    assert code == "0" and "ODD1 odd: not judged: the probe failed: KeyError: 'seen'" in out, (out, err)
    remarks = [
        "probe 'seeing' (from odd 1) is left out: KeyError: 'seen'",
        "probe 'attaching' (from odd 1) is left out: SystemExit: 3",
    ]
    assert [err.count(remark) for remark in remarks] == [1, 1], err
    assert made == "0" and [told.count(remark) for remark in remarks] == [1, 1], told
    assert told.count("probe 'reporting' (from odd 1) is left out: ") == 1 and "Traceback" not in err + told
    reports = {report["probe"]: report for report in json.loads((net / "page.json").read_text())["reports"]}
    assert reports["shapes"]["rows"] and reports["activations"]["rows"] and not reports["check"]["findings"]
    (skipped,) = [one for one in reports["check"]["skipped"] if one["fqn"] == "ODD1 odd"]
    assert skipped["reason"] == "not judged: the probe failed: KeyError: 'seen'"


CHECKS = """
from dataclasses import replace

from hookcli.checks.base import Check, LinesCheck

class Late(Check):
    id, name, means, advice, needs, over_steps = "ODD1", "late", "that", "this", ("activations",), "first"

    def judge(self, measured):
        if measured.step:
            raise RuntimeError(f"at step {measured.step}")
        yield self.finding("0", "is odd")

class OfLines(LinesCheck):
    id, name, means, advice, reads = "ODD2", "of-lines", "that", "this", ("pace",)

    def judge(self, measured):
        raise RuntimeError("lineless")

class OfRecord(Late):
    id, name, needs, asked_by = "ODD3", "of-record", ("record",), "hookcli run --check"

    def judge(self, measured):
        raise RuntimeError("recordless")
"""


def test_checks_that_fail_cost_themselves_in_a_recorded_run(net: Path) -> None:
    """Findings of earlier steps stay; the summary counts the checks that could not judge, and stderr names them."""
    install(net, {"odd": "checks={'ODD1': 'odd:Late', 'ODD2': 'odd:OfLines', 'ODD3': 'odd:OfRecord'}"}, CHECKS)
    (net / "train.py").write_text(TRAIN.replace('float("inf")', "1.0"))
    ran = recorded(net, "--check", "--debug")
    remarks = [
        "hookcli: check ODD1 (from odd 1) is left out: RuntimeError: at step 1",
        "hookcli: check ODD2 (from odd 1) is left out: RuntimeError: lineless",
        "hookcli: check ODD3 (from odd 1) is left out: RuntimeError: recordless",
    ]
    assert ran.returncode == 0 and [ran.stderr.count(line) for line in remarks] == [1, 1, 1], ran.stderr
    assert ran.stderr.count("is left out") == 3 and "bug" not in ran.stderr
    assert "1 warning, 2 checks could not judge (" in ran.stderr and "is odd (step 0)" in ran.stderr
    assert ran.stderr.count("Traceback (most recent call last):") == 3
    ((code, out, err), (_, page, _)) = hookcli_lines(net, "show train.run.jsonl", "show train.run.jsonl -f json")
    assert code == "0" and "1 warning, 2 checks could not judge (" in out and err.count("is left out") == 2, err
    (verdict,) = [one for one in json.loads(page)["reports"] if one["probe"] == "check"][-1:]
    reasons = {one["fqn"]: one["reason"] for one in verdict["skipped"] if one["fqn"].startswith("ODD")}
    assert reasons == {
        "ODD1 late": "not judged: it failed: RuntimeError: at step 2",
        "ODD2 of-lines": "not judged: it failed: RuntimeError: lineless",
    }


SHOWN = """
from hookcli.checks.base import Check
from hookcli.probes.base import Probe
from hookcli.table import Column, Row

class Drawn(Probe):
    name = "drawn"
    columns = (Column("fqn", "Layer"), Column("edge", "Edge"))

    def attach(self, session):
        pass

    def rows(self):
        return [Row({"fqn": "0", "edge": "1"})]

class Odd(Check):
    id, name, means, needs = "ODD1", "odd", "that", ("activations",)
    advice = "see `hookcli drawn MODEL`"
    look = "drawn"

    def judge(self, measured):
        yield self.finding("0", "is odd")

def fail(*given):
    raise KeyError("drawn")
"""


def test_a_next_command_and_a_drawing_that_fail_are_named(net: Path) -> None:
    """Advice then has the command as for any other; a graph that can't be drawn is an error, not an empty file."""
    fields = "probe='odd:Drawn', as_checked='odd:fail', drawing='odd:fail', drawn=('edge',), checks={'ODD1': 'odd:Odd'}"
    install(net, {"drawn": fields}, SHOWN)
    lines = ("check net.py:Net -i 4x4", "drawn net.py:Net -i 4x4 --format dot", "shapes net.py:Net -i 4x4")
    (code, out, err), (failed, graph, told), (works, *_) = hookcli_lines(net, *lines)
    assert code == "0" and "see `hookcli drawn net.py:Net --input 4x4`" in " ".join(out.split()), out
    assert "Next: hookcli explain ODD1" in out
    assert err == f"hookcli: {ONE.format('drawn')}as_checked='odd:fail' is left out: KeyError: 'drawn'\n"
    assert failed == "2" and not graph
    assert told == f"hookcli: error: {ONE.format('drawn')}drawing='odd:fail' failed: KeyError: 'drawn'\n"
    assert works == "0"


ASKED = """
from hookcli.commands.diff_kinds import Side

EXAMPLES = ("hookcli asked",)

def asked() -> int:
    "Be asked."
    raise KeyError("asked")

class Unfit(Side):
    what, place = "odds", -1

    def fits(self, text):
        raise KeyError("fits")

    def compare(self, asked):
        raise KeyError("compared")

class Odd(Unfit):
    def fits(self, text):
        return text.endswith(".odd")
"""


def test_a_command_and_a_comparison_that_fail_are_named(net: Path) -> None:
    """A side that can't tell what it fits costs itself alone; what was asked for is an error, and not a bug of ours."""
    install(net, {"asked": "command='odd', side='odd:Odd'", "unfit": "side='odd:Unfit'"}, ASKED)
    lines = ("diff net.py:Net net.py:Net -i 4x4", "diff a.odd b.odd", "asked")
    (same, out, err), (failed, _, told), (code, _, said) = hookcli_lines(net, *lines)
    unfit = f"hookcli: {ONE.format('unfit')}side='odd:Unfit' is left out: KeyError: 'fits'\n"
    assert same == "0" and "0 beyond" in out and err == unfit
    error = f"hookcli: error: {ONE.format('asked')}"
    assert failed == "2" and told == f"{error}side='odd:Odd' failed: KeyError: 'compared'\n{unfit}"
    line = ASKED.splitlines().index('    raise KeyError("asked")') + 1
    assert (code, said) == ("2", f"{error}its command failed: KeyError: 'asked' at odd.py:{line}\n")


def test_a_manifest_with_a_field_of_another_type_is_left_out(net: Path) -> None:
    install(net, {"odd": "checks=None"})
    (code, out, err), (listed, every, _) = hookcli_lines(net, "check net.py:Net -i 4x4", "plugins -f csv")
    assert code == "0" and "checks passed" in out and listed == "0" and "odd" not in every
    assert err == "hookcli: capability 'odd' (from odd 1) does not load: TypeError: checks must not be NoneType\n"


PIECES = """
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hookcli.record.file.record_lines import PartLine

@dataclass(frozen=True)
class Listed(PartLine):
    kind: ClassVar[str] = "listed"
    modules: list[str]

LINES = (Listed,)

def headline(record):
    raise KeyError("first")
"""
COLUMNS = """
from hookcli.table.column import Column, Kind

COLUMNS = (Column("rank", "Order", kind=Kind.TEXT), Column("own_odd", "Odd"))
"""
ONE = "capability {!r} (from odd 1): "
LISTED = "lines='odd:LINES' is left out: a record can't hold 'modules' of Listed, whose type is list[str]"
GONE = "module 'odd' has no attribute 'GONE'"


def test_pieces_that_fail_are_named_and_left_out(net: Path) -> None:
    manifests = {
        "typed": "lines='odd:LINES'",
        "columned": "columns='odd_columns:GONE'",
        "charted": "charts='odd:GONE'",
        "headlined": "headline='odd:headline', headline_place=-1",
        "untitled": "headline='odd:GONE'",
        "viewed": "view='odd_manifests:gone.js'",
        "taken": "columns='odd_columns:COLUMNS'",
    }
    install(net, manifests, PIECES)
    (net / "odd_columns.py").write_text(COLUMNS)
    ran = recorded(net)
    assert ran.returncode == 0 and "3 recorded steps" in ran.stderr
    assert ONE.format("headlined") + "headline='odd:headline' is left out: KeyError: 'first'" in ran.stderr
    lines = {
        "explain HK010": (ONE.format("columned") + "columns='odd_columns:GONE' is left out: AttributeError: ",),
        "check net.py:Net -i 4x4": (),
        "show train.run.jsonl": (
            ONE.format("headlined") + "headline='odd:headline' is left out: KeyError: 'first'",
            ONE.format("untitled") + f"headline='odd:GONE' is left out: AttributeError: {GONE}",
        ),
        "report train.run.jsonl -o page.html": (
            ONE.format("charted") + f"charts='odd:GONE' is left out: AttributeError: {GONE}",
            ONE.format("viewed") + "view='odd_manifests:gone.js' is left out: ",
        ),
    }
    each = hookcli_lines(net, *lines)
    for (line, remarks), (code, out, err) in zip(lines.items(), each, strict=True):
        assert code == "0" and (out or "-o" in line) and "Traceback" not in err, (line, err)
        assert [err.count(remark) for remark in remarks] == [1] * len(remarks), err
    every = "".join(err for _, _, err in each)
    assert every.count(ONE.format("taken") + "its column 'rank' is not used: hookcli has one of this name") == 1
    assert every.count(ONE.format("typed") + LISTED) == 1 and "own_odd" not in every
