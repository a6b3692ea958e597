"""Plugins of other distributions: found without being loaded, used from the command line, harmless when broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import forks
import pytest
from installed import installed

from hookcli import registry
from hookcli.errors import PluginError
from hookcli.registry.capability import any_declared
from hookcli.table import Report
from hookcli.table.files import sound

pytestmark = pytest.mark.xdist_group("plugins")  # one installation

HERE = Path(__file__).parent
BROKEN = {("probe", "broken"), ("edit", "lost")}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the demo distribution, as pip installs it."""
    return installed("plugin_dist", tmp_path_factory.mktemp("site"))


def run(site: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "hookcli", *argv]
    return forks.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths}, check=False)


def test_all_three_kinds_from_the_command_line(scratch: Path) -> None:
    ran = run(scratch, "dead", "demo:8", "--format", "lines", "--seed", "1")
    assert ran.returncode == 0, ran.stderr
    name, units, dead = ran.stdout.strip().split("|")
    assert (name, units) == ("1", "8") and 0 <= int(dead) <= 8
    assert "\nUsage: hookcli dead [OPTIONS] [MODEL]\n" in run(scratch, "dead", "--help").stdout
    shapes = json.loads(run(scratch, "shapes", "demo:8", "--format", "json").stdout)
    assert shapes["reports"][0]["totals"]["params"] == 4 * 8 + 8 + 8 + 1
    about = shapes["reports"][0]["meta"]
    assert (about["weights"], about["plugin"]) == ("random", {"width": 8, "layers": ["Linear", "ReLU"]})
    assert sound(Report.from_dict(shapes["reports"][0])).meta == about
    assert run(scratch, "shapes", "demo:wide").stderr == "hookcli: error: demo:wide: give a width, as in demo:8\n"


def test_a_reporters_name_is_a_suffix(scratch: Path, tmp_path: Path) -> None:
    assert run(scratch, "dead", "demo:8", "--output", str(tmp_path / "x.lines")).returncode == 0
    assert (tmp_path / "x.lines").read_text().startswith("1|8|")


def test_listing_names_the_distribution_and_what_does_not_load(scratch: Path) -> None:
    ran = run(scratch, "plugins", "--format", "json")
    rows = {(row["kind"], row["name"]): row for row in json.loads(ran.stdout)["reports"][0]["rows"]}
    assert rows["probe", "dead"]["distribution"] == "hookcli-demo 1.2.3"
    assert rows["probe", "broken"]["state"] is None and ran.returncode == 0
    ran = run(scratch, "plugins", "--load", "--format", "json")
    rows = {(row["kind"], row["name"]): row for row in json.loads(ran.stdout)["reports"][0]["rows"]}
    assert "hookcli-demo 1.2.3" in rows["probe", "broken"]["state"] and ran.returncode == 2
    assert all(row["state"] == "loads" for key, row in rows.items() if key not in BROKEN)


def test_a_broken_plugin_costs_one_line_and_the_rest_works(scratch: Path) -> None:
    ran = run(scratch, "broken", "demo:8")
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)
    assert "'broken'" in ran.stderr and "hookcli-demo" in ran.stderr and "ModuleNotFoundError" in ran.stderr
    assert run(scratch, "shapes", "demo:8").returncode == 0


def test_an_edit_of_another_distribution(scratch: Path) -> None:
    argv = ("activations", "demo:8", "--match", "0", "--format", "json", "--edit")
    ran = run(scratch, *argv, "0:output=keep(3, value=7.5)")
    assert ran.returncode == 0, ran.stderr
    [row] = json.loads(ran.stdout)["reports"][0]["rows"]
    assert row["edited"] == "keep(3, value=7.5)" and row["max"] == 7.5 and row["mean"] > 4
    wrong = run(scratch, *argv, "0:output=keep")
    assert wrong.stderr.endswith("missing a required argument: 'units'; use keep(units)\n")
    near = run(scratch, *argv, "0:output=kepe(3)")
    assert "unknown operation 'kepe'; did you mean keep?" in near.stderr
    broken = run(scratch, *argv, "0:output=lost")
    said = json.loads(broken.stdout)["error"]
    assert (broken.returncode, said["id"], len(broken.stderr.splitlines())) == (2, "HKE005", 1)
    assert "plugin 'lost' (edits, from hookcli-demo 1.2.3) does not load" in broken.stderr
    listed = json.loads(run(scratch, "plugins", "--format", "json").stdout)["reports"][0]["rows"]
    edits = {row["name"]: row["distribution"] for row in listed if row["kind"] == "edit"}
    assert edits["keep"] == "hookcli-demo 1.2.3" and edits["scale"] == "hookcli"


def test_a_check_of_another_distribution(scratch: Path) -> None:
    ran = run(scratch, "check", "demo:8", "--format", "json")
    [report] = json.loads(ran.stdout)["reports"]
    [found] = [finding for finding in report["findings"] if finding["check"] == "DEMO1"]
    assert (found["fqn"], found["value"], found["threshold"]) == ("2", 1, 4) and ran.returncode == 0, ran.stderr
    assert found["hint"] == "a width that was mistyped; make it wider"
    ran = run(scratch, "check", "demo:8", "--select", "DEMO", "--threshold", "narrow-layer=1", "--fail-on", "warning")
    assert ran.returncode == 0 and ran.stdout.splitlines()[0] == "1 check passed (4 modules)"
    assert run(scratch, "explain", "DEMO1").stdout.startswith("DEMO1 narrow-layer (warning)\n\nA layer returns")
    assert "DEMO1" in run(scratch, "check", "--list").stdout


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(PluginError, match="did you mean shapes"):
        registry.load("probes", "shape")


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_built_in_plugin_loads(kind: str) -> None:
    own = [plugin for plugin in registry.plugins(kind) if plugin.distribution == "hookcli"]
    assert len(own) > 5 and all(plugin.load().__doc__ for plugin in own)


def test_a_distribution_that_declares_plugins_is_seen_without_importlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "gone")])
    (tmp_path / "other-1.dist-info").mkdir()
    (tmp_path / "other-1.dist-info/entry_points.txt").write_text("[console_scripts]\nother = other:main\n")
    assert not any_declared()
    (tmp_path / "mine-1.dist-info").mkdir()
    (tmp_path / "mine-1.dist-info/entry_points.txt").write_text("[hookcli.probes]\nmine = mine:Probe\n")
    assert any_declared()
    (tmp_path / "some.zip").write_bytes(b"")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "some.zip")])
    assert any_declared()  # it may: a zip file is left to those who can read it
