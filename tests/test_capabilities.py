"""Capabilities: one of another distribution does what hookcli's own do, and each of these can be deleted."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tomllib
from base64 import b64decode
from dataclasses import make_dataclass
from pathlib import Path

import forks
import pytest
from installed import installed
from support import swept

import hookcli
from hookcli.commands import COMMANDS
from hookcli.commands.option_fields import in_order, option
from hookcli.registry.built_in import built_in
from hookcli.registry.capability import Capability, capabilities, each_after_its_own, placed

pytestmark = pytest.mark.xdist_group("capabilities")  # one installation
HERE = Path(__file__).parent
PACKAGE = Path(hookcli.__file__).parent
DOCS = HERE.parent / "docs"
OWN = [one.name for one in capabilities() if one.distribution == "hookcli"]
NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        nn.init.constant_(self[2].weight, 0.0)
        nn.init.constant_(self[2].bias, -1.0)
"""
TRAIN = """
import torch
from net import Net

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
"""


def folder(name: str) -> str:
    """The folder of a capability of this name: a package, whose name has no dash."""
    return name.replace("-", "_")


def python(folder: Path, paths: list[Path], code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run the code where hookcli is not imported yet: manifests are read as it is."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    words = [sys.executable, "-c", code, *argv]
    return forks.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)


def command(folder: Path, paths: list[Path], *argv: str) -> subprocess.CompletedProcess[str]:
    return python(folder, paths, "import runpy; runpy.run_module('hookcli', run_name='__main__')", *argv)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the distribution of a capability, as pip installs it."""
    return installed("capability_dist", tmp_path_factory.mktemp("site"))


@pytest.fixture
def net(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_a_capability_of_another_distribution_does_all_that_hookcli_s_own_do(site: Path, net: Path) -> None:
    paths = [site, PACKAGE.parent]
    ran = command(net, paths, "signs", "net.py:Net", "--input", "3x4", "--format", "json")
    [report] = json.loads(ran.stdout)["reports"]
    assert [row["positive"] for row in report["rows"]][1] == 0 and report["rows"][1]["largest"] == -1.0
    assert "'lost' (from hookcli-signs 0.3) does not load: ModuleNotFoundError" in ran.stderr and ran.returncode == 0
    ran = command(net, paths, "check", "net.py:Net", "--input", "3x4", "--signs")
    assert ran.returncode == 0 and "SIGNS  warning  2: no value is positive" in ran.stdout
    ran = command(net, paths, "run", "--signs", "--check", "train.py")
    assert "SIGNS  warning  2: no value is positive" in ran.stderr
    shown = command(net, paths, "show", "train.run.jsonl", "--over-time", "positive", "--match", "2", "-f", "json")
    assert [row["positive[2]"] for row in json.loads(shown.stdout)["reports"][0]["rows"]] == [0, 0, 0]


def test_its_part_of_a_recorder_writes_lines_that_are_read_again(site: Path, net: Path) -> None:
    said = "Net: no output is positive in 3 recorded steps"
    ran = command(net, [site, PACKAGE.parent], "run", "train.py")
    assert ran.returncode == 0 and said not in ran.stdout
    lines = [json.loads(line) for line in (net / "train.run.jsonl").read_text().splitlines()]
    assert [(line["step"], line["positive"]) for line in lines if line["line"] == "signs"] == [(0, 0), (1, 0), (2, 0)]
    shown = command(net, [site, PACKAGE.parent], "show", "train.run.jsonl")
    assert said in shown.stdout + shown.stderr and "left out" not in shown.stderr
    shown = command(net, [site, PACKAGE.parent], "show", "train.run.jsonl", "--over-time", ".", "-f", "json")
    assert [row["positive_outputs"] for row in json.loads(shown.stdout)["reports"][0]["rows"]] == [0, 0, 0]
    made = command(net, [site, PACKAGE.parent], "report", "train.run.jsonl", "-o", "record.html")
    assert made.returncode == 0, made.stderr
    without = command(net, [PACKAGE.parent], "show", "train.run.jsonl")
    assert without.returncode == 0 and said not in without.stdout + without.stderr
    assert "3 lines left out: no capability here reads 'signs'" in without.stderr
    assert "damaged" not in without.stderr


def test_its_part_of_a_page_stands_beside_the_page_s_own_and_gets_its_reports(site: Path, net: Path) -> None:
    made = command(net, [site, PACKAGE.parent], "report", "net.py:Net", "--input", "3x4", "-o", "page.html")
    page = (net / "page.html").read_text()
    assert made.returncode == 0 and ".signs-of-layers { margin: 0 }" in page, made.stderr
    assert page.count('<script type="module">const { addPart, h } = hookcliPage;\n{\nconst rows = ') == 1
    data = gzip.decompress(b64decode(page.partition('base64">')[2].partition("<")[0])).partition(b"\0")[0]
    (report,) = [one for one in json.loads(data)["reports"] if one["probe"] == "signs"]
    assert [row["fqn"] for row in report["rows"]] == ["0", "2"]


def test_its_check_has_an_option_of_its_own_and_measures_what_no_probe_sees(site: Path, net: Path) -> None:
    paths, asked = [site, PACKAGE.parent], ("check", "net.py:Net", "--input", "3x4", "--select", "ZEROS")
    (net / "limit.toml").write_text('[tool.hookcli]\nmax-zeros = "15"\n')
    for limit in (("--max-zeros", "15"), ("--config", "limit.toml")):
        ran = command(net, paths, *asked, *limit)
        assert ran.returncode == 1 and "ZEROS  error    (model): 16 zeros, allowed: 15" in ran.stdout, ran.stderr
    assert command(net, paths, *asked, "--max-zeros", "16").returncode == 0
    lines = [line.split()[:2] for line in command(net, paths, "check", "--help", "all").stdout.splitlines()]
    options = [words[0] for words in lines if words and words[0].startswith("--max-")]
    assert options[:3] == ["--max-params", "--max-zeros", "--max-macs"]


def test_its_part_has_an_option_of_run(site: Path, net: Path) -> None:
    paths = [site, PACKAGE.parent]
    shown = command(net, paths, "run", "--help", "all").stdout.splitlines()
    options = [line.split()[0] for line in shown if line.startswith("      --")]
    assert options.index("--match") < options.index("--signs-above") < options.index("--check")
    assert any("--signs-above X" in line and "Count values above X" in line for line in shown)
    ran = command(net, paths, "run", "--signs-above=-5", "train.py")
    lines = [json.loads(line) for line in (net / "train.run.jsonl").read_text().splitlines()]
    assert [line["positive"] for line in lines if line["line"] == "signs"] == [8, 8, 8], ran.stderr
    ran = command(net, paths, "run", "--every", "2", "train.py")
    assert "signs were counted in 2 of 3 steps" in ran.stderr
    ran = command(net, paths, "run", "--signs-above=some", "train.py")
    assert ran.returncode == 2 and "--signs-above some: give a number" in ran.stderr
    watched = "import torch, hookcli, net\nwith hookcli.watch(net.Net(), every=1, signs_above='some'): pass"
    told = python(net, paths, watched)
    assert "UsageError: --signs-above some: give a number" in told.stderr


def test_it_is_listed_where_its_manifest_says(site: Path, net: Path) -> None:
    paths = [site, PACKAGE.parent]
    lines = command(net, paths, "--help", "all").stdout.splitlines()
    (number,) = (number for number, line in enumerate(lines) if line.startswith("  signs "))
    assert lines[number - 1].split()[0] == "experts" and "layer are positive" in lines[number]
    rows = json.loads(command(net, paths, "plugins", "--format", "json").stdout)["reports"][0]["rows"]
    assert {(row["kind"], row["name"]) for row in rows if row["distribution"] == "hookcli-signs 0.3"} == {
        ("capability", "signs"),
        ("capability", "zeros"),
        ("probe", "signs"),
        ("check", "SIGNS"),
        ("check", "ZEROS"),
    }
    schema = json.loads(command(net, paths, "schema", "signs").stdout)
    assert "positive" in json.dumps(schema)


MANY = """
from dataclasses import make_dataclass
from hookcli.commands.option_fields import option
from hookcli.registry.capability import Capability

EXAMPLES = ("hookcli many0",) * 9
TEXT = "A text about this that is longer than a line of a small terminal is wide, and says little besides. " * 2
Own = make_dataclass("Own", [(f"own_{n}", bool, option(False, TEXT)) for n in range(60)], frozen=True)

def many0(*, own: Own) -> int:
    return 0

many0.__doc__ = "Show many things.\\n\\nIn detail."
PLACES = ["shapes", "grads", "check", "diff", "run", "plugins"]
for n in range(30):
    kept = {"command": __name__} if n == 0 else {"probe": f"{__name__}:Probe{n}"}
    globals()[f"C{n}"] = Capability(name=f"many{n}", page="", after=PLACES[n % 6], summary=f"{n}: {TEXT}", **kept)
"""


def test_help_fits_its_screens_whatever_others_add(site: Path, net: Path) -> None:
    info = net / "many-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: many\nVersion: 1\n")
    entries = "\n".join(f"many{n} = many:C{n}" for n in range(30))
    (info / "entry_points.txt").write_text(f"[hookcli.capabilities]\n{entries}\n")
    (net / "many.py").write_text(MANY)
    script = """if True:
        from hookcli.cli import main
        for words in ([], ["-h"], ["--help", "all"], ["many0", "-h"], ["many0", "--help"], ["many0", "--help", "all"]):
            main(words)
            print("=====")
    """
    ran = python(net, [site, PACKAGE.parent, net], script)
    alone, short, every, *own, rest = ran.stdout.split("=====\n")
    assert rest == "" and max(map(len, ran.stdout.splitlines())) <= 100
    assert len(alone.splitlines()) <= 24 - 2 and max(map(len, alone.splitlines())) <= 80
    assert len(short.splitlines()) <= 40 and max(map(len, short.splitlines())) <= 80
    named = set(short.replace(",", " ").split())
    assert {*COMMANDS} | {f"many{n}" for n in range(30)} <= named and "Further:" in named and "--help all" in short
    assert all(f"\n  {name} " in short for name in ("shapes", "activations", "check", "diff", "run"))
    assert all(f"\n  many{n} " in every for n in range(30)) and "Further:" not in every
    assert len(own[0].splitlines()) <= 24 and "hookcli many0" in own[0] and "--own-0 " in own[0]
    assert [sum(" --" in line for line in page.splitlines() if "more option" not in line) for page in own[1:]] == [
        25,
        61,
    ]
    assert own[1].endswith("\n36 more options: hookcli many0 --help all\n")


def test_two_of_one_name_are_an_error(site: Path, net: Path) -> None:
    twin = net / "twin-1.dist-info"
    twin.mkdir()
    (twin / "METADATA").write_text("Metadata-Version: 2.1\nName: twin\nVersion: 1\n")
    (twin / "entry_points.txt").write_text("[hookcli.capabilities]\nsigns = hookcli_signs:CAPABILITY\n")
    ran = command(net, [site, PACKAGE.parent, net], "shapes", "net.py:Net", "--input", "3x4")
    assert ran.returncode == 2 and len(ran.stderr.splitlines()) == 1
    assert "capability 'signs' is ambiguous: " in ran.stderr and "uninstall one" in ran.stderr


@pytest.mark.parametrize(
    ("manifest", "commands", "other"),
    [
        ("options=(RecorderOption(name='every', help='Ours.'),)", "run watch", "`hookcli run`"),
        swept("options=(RecorderOption(name='above', typed='script', help='Ours.'),)", "run", "`hookcli run`"),
        swept("options=(RecorderOption(name='signs_above', help='Ours.'),)", "run watch", "capability 'signs'"),
        swept("flag='Ours.', options=(RecorderOption(name='twin', help='Ours.'),)", "run", "capability 'twin'"),
        swept("options=(RecorderOption(name='every_one', help='Ours.'),)", "", ""),
    ],
)
def test_an_option_of_two_is_an_error_that_names_both(
    manifest: str, commands: str, other: str, site: Path, net: Path
) -> None:
    """Of the command that has it, and of no other."""
    info = net / "twin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hookcli.capabilities]\ntwin = twin:CAPABILITY\n")
    imported = "from hookcli.registry.capability import Capability, RecorderOption\n"
    (net / "twin.py").write_text(f"{imported}CAPABILITY = Capability(name='twin', page='', {manifest})\n")
    script = """if True:
        import sys, hookcli, net
        from hookcli.cli import main
        codes = [main(["run", "--help"]), main(["check", "--help"])]
        try:
            hookcli.watch(net.Net(), every=1)
        except hookcli.errors.PluginError as error:
            print(error, file=sys.stderr)
        print(codes)
    """
    ran = python(net, [site, PACKAGE.parent, net], script)
    told = [line for line in ran.stderr.splitlines() if "is ambiguous" in line]
    assert len(told) == len(commands.split()) and ran.stdout.endswith(f"[{2 if commands else 0}, 0]\n"), ran
    for line in told:
        assert (other in line or "`hookcli.watch`" in line) and "capability 'twin' (from twin 1)" in line


def test_commands_stand_after_the_one_that_they_name() -> None:
    added = [Capability(name=name, page="", after=after) for name, after in (("x", "a"), ("y", "a"), ("z", "none"))]
    added.append(Capability(name="first", page="", after="b", question="two"))
    added += [Capability(name=name, page="", after="c", order=order) for name, order in (("p", 2), ("q", 1))]
    added.append(Capability(name="next", page="", after="gone x b"))
    questions = {"one": ["a", "b"], "two": ["c"]}
    assert placed(questions, added) == {"one": ("a", "x", "next", "y", "b"), "two": ("first", "c", "q", "p", "z")}


def test_the_extras_of_manifests_are_hookcli_s() -> None:
    extras = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {one.extra for one in capabilities() if one.extra and one.distribution == "hookcli"} <= {*extras}


def test_one_that_comes_after_another_is_found_behind_it_also_in_a_circle() -> None:
    after = {"a": "gone c", "b": "core", "c": "d", "d": "", "e": "f", "f": "e"}
    added = each_after_its_own({name: Capability(name=name, page="", after=other) for name, other in after.items()})
    assert [one.name for one in added] == ["d", "c", "a", "b", "f", "e"]


def test_an_option_stands_behind_all_that_come_after_the_same_one() -> None:
    names = {"one": None, "two": None, "b": "gone one", "of_b": "b", "c": "one", "last": "gone"}
    made = [(name, str, option("", "", **({"after": after} if after else {}))) for name, after in names.items()]
    assert [each.name for each in in_order(make_dataclass("Made", made))] == ["one", "b", "of_b", "c", "two", "last"]


@pytest.mark.parametrize("name", [one.name for one in capabilities() if one.after and one.name in OWN])
def test_each_comes_after_something_of_the_core(name: str) -> None:
    """At least in the end: else it would come last where another capability is gone."""
    (manifest,) = (one for one in capabilities() if one.name == name)
    core = {*built_in("reporters"), *COMMANDS} - {*OWN}
    assert core.intersection(manifest.after.split())


@pytest.mark.parametrize("name", OWN)
def test_each_has_a_page_and_an_own_folder_of_tests(name: str) -> None:
    (manifest,) = (one for one in capabilities() if one.name == name)
    assert (DOCS / manifest.page).is_file() and [*(HERE / "capabilities" / folder(name)).glob("test_*.py")]


@pytest.mark.parametrize("gone", [OWN, *(swept([name]) for name in OWN)], ids=" ".join)
def test_what_remains_works_without_it(gone: list[str], net: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, copy / "hookcli")  # with its byte code
    for name in gone:
        shutil.rmtree(copy / "hookcli" / "capabilities" / folder(name))
    lines = [
        ["--help"],
        ["plugins", "--load"],
        ["schema"],
        ["shapes", "net.py:Net", "--input", "3x4"],
        ["activations", "net.py:Net", "--input", "3x4"],
        ["grads", "net.py:Net", "--input", "3x4"],
        ["check", "net.py:Net", "--input", "3x4"],
        ["report", "net.py:Net", "--input", "3x4", "-o", "page.html"],
        ["diff", "net.py:Net", "net.py:Net", "--input", "3x4"],
    ]
    script = f"import sys; from hookcli.cli import main; sys.exit(max(main(line) for line in {lines}))"
    ran = python(net, [copy], script)
    assert ran.returncode == 0, ran.stderr
    listed = [line.split()[0] for line in ran.stdout.splitlines() if line.startswith("  ") and line.strip()]
    assert listed and not {*listed}.intersection(gone)
    recorded = command(net, [copy], "run", "--check", "train.py")
    assert "All " in recorded.stderr or "HK" in recorded.stderr, recorded.stderr
    assert command(net, [copy], "show", "train.run.jsonl").returncode == 0
