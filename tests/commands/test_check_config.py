"""hookcli check: its configuration, mistakes and documentation."""

from __future__ import annotations

import sys
from pathlib import Path

import forks
import pytest
from commands.check_nets import IN, PARTS, Cli, ids, reports

from hookcli.checks.selection import find_check, known_checks


@pytest.fixture(autouse=True)
def parts(net: Path) -> Path:
    (net / "parts.py").write_text(PARTS)
    return net


def write(text: str) -> None:
    Path("pyproject.toml").write_text(text)


# The configuration.


@pytest.mark.sweep
def test_plain_check_does_what_the_file_says(cli: Cli) -> None:
    write(
        "[tool.hookcli]\ninput = '4x3x4x4'\nfail-on = 'warning'\nignore = ['HK006']\nthresholds = {HK010 = 0.9}\n"
        "[[tool.hookcli.models]]\nmodel = 'parts.py:Unused'\n"
        "[[tool.hookcli.models]]\nmodel = 'net.py:Net'\nmax-params = '1K'\ninput = '6x3x4x4'\narg = ['width=4']\n"
    )
    ran = cli("check", "-f", "json")
    first, second = reports(ran)
    assert ran.code == 1 and (ids(first), ids(second)) == (["HK008"], [])
    assert (first["meta"]["input"], second["meta"]["input"]) == ("4x3x4x4", "6x3x4x4")
    assert second["meta"]["checks"].count("HK022") == 1 and "HK022" not in first["meta"]["checks"]
    [report] = reports(cli("check", "net.py:Net", "-f", "json", "--input", "8x3x4x4", "--max-params", "100"))
    assert report["meta"]["input"] == "8x3x4x4" and ids(report) == ["HK022"]
    assert report["findings"][0]["threshold"] == 100


@pytest.mark.parametrize("weights", ["NOPE", "IMAGENET1K_V1", "none.pt"])
def test_wrong_weights_are_told_with_their_section(
    weights: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    write(f"[tool.hookcli]\nmodel = 'resnet18'\nweights = '{weights}'\n")
    ran = cli("check")
    assert ran.code == 2 and "pyproject.toml [tool.hookcli]" in ran.err and weights in ran.err


def test_a_default_that_was_typed_beats_the_file(cli: Cli) -> None:
    write("[tool.hookcli]\nmodel = 'parts.py:Forgets'\ninput = '8x3x4x4'\nfail-on = 'warning'\nseed = 3\n")
    assert cli("check").code == 1
    ran = cli("check", "--fail-on", "error", "--seed", "0", "-f", "json")
    assert ran.code == 0 and reports(ran)[0]["meta"]["seed"] == 0


def test_what_was_typed_overrules_what_contradicts_it_in_the_file(cli: Cli) -> None:
    write("[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '8x3x4x4'\nrepeat = 2\nmax-activation-memory = '1GiB'\n")
    assert reports(cli("check", "-f", "json"))[0]["meta"]["checks"][-11:-9] == ["HK024", "HK025"]
    assert "HK025" not in reports(cli("check", "--meta", "-f", "json"))[0]["meta"]["checks"]
    assert "HK024" not in reports(cli("check", "--no-backward", "-f", "json"))[0]["meta"]["checks"]


def test_a_budget_among_the_thresholds_is_overruled_too(cli: Cli) -> None:
    write("[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '8x3x4x4'\nthresholds = {max-activation-memory = '1GiB'}\n")
    assert "HK024" in reports(cli("check", "-f", "json"))[0]["meta"]["checks"]
    ran = cli("check", "--no-backward", "-f", "json")
    assert ran.code == 0 and "HK024" not in reports(ran)[0]["meta"]["checks"]
    write("[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '8x3x4x4'\nbackward = false\n")
    ran = cli("check", "--threshold", "HK024=1GiB", "-f", "json")
    assert ran.code == 0 and "HK024" in reports(ran)[0]["meta"]["checks"]


def test_checks_that_were_typed_overrule_the_file(cli: Cli) -> None:
    write("[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '8x3x4x4'\nselect = ['HK012', 'HK003']\n")
    [report] = reports(cli("check", "--ignore", "vanishing-gradients", "-f", "json"))
    assert report["meta"]["checks"] == ["HK003"]
    ran = cli("check", "--ignore", "HK012,HK003")
    assert ran.code == 2 and "--ignore excludes all checks that pyproject.toml [tool.hookcli] select names" in ran.err
    assert "unknown --ignore 'HK999'" in cli("check", "--ignore", "HK999").err
    write("[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '8x3x4x4'\nignore = ['HK012', 'HK003']\n")
    assert reports(cli("check", "--select", "HK012", "-f", "json"))[0]["meta"]["checks"] == ["HK012"]


@pytest.mark.sweep
def test_another_file_and_no_section(cli: Cli) -> None:
    Path("ci.toml").write_text("[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '8x3x4x4'\n")
    write("[tool.ruff]\nline-length = 120\n")
    assert "net.py:Net" in cli("check", "--config", "ci.toml").out
    assert cli("check", "net.py:Net", *IN).code == 0


WRONG_FILES = {
    "tool = 3": "pyproject.toml: tool = 3 is not a section",
    "[tool.hookcli]\nbackward = false\nthresholds = {HK024 = 5}": "[tool.hookcli]: backward = false and max-",
    "[tool.hookcli": "pyproject.toml: can't be read as TOML: ",
    "[tool.hookcli]\ntreshold = 1": "pyproject.toml [tool.hookcli]: unknown key 'treshold'; did you mean thresholds?",
    "[tool.hookcli]\nmodel = 'a'\nmodels = ['b']": "[tool.hookcli]: has both model and models: leave one",
    "[tool.hookcli]\nmodels = ['a', 'a']": "pyproject.toml [tool.hookcli] models: 'a' is listed twice",
    "[tool.hookcli]\nmodels = [3]": "pyproject.toml [tool.hookcli] models: 3 is neither a name nor a table",
    "[tool.hookcli]\nseed = '3'": "pyproject.toml [tool.hookcli] seed = '3': give a whole number",
    "[tool.hookcli]\nbatch-size = 0": "pyproject.toml [tool.hookcli] batch-size = 0: give a whole number from 1",
    f"[tool.hookcli]\nseed = '{'a' * 70}'": f"seed = '{'a' * 59}… (72 characters): give a whole number",
    "[tool.hookcli]\nmeta = 1": "pyproject.toml [tool.hookcli] meta = 1: give true or false",
    "[tool.hookcli]\nthresholds = {HK012 = 5}": "[tool.hookcli] thresholds: HK012=5: out of range; "
    "HK012 (vanishing-gradients) takes 0 to 1",
    "[tool.hookcli]\nthresholds = {HK112 = 5}": "HK112=5: unknown check 'HK112'; did you mean HK012?",
    "[tool.hookcli]\nmax-params = 3\nthresholds = {max-params = 5}": "max-params is given twice, once as a threshold",
    "[tool.hookcli]\nthresholds = {max-params = 5, HK022 = 5}": "HK022 is given two thresholds",
    "[tool.hookcli]\nselect = 'HK012'\nignore = 'vanishing-gradients'": "[tool.hookcli]: vanishing-gradients is "
    "both selected and ignored",
    "[tool.hookcli]\nselect = 'HK9'": "[tool.hookcli]: unknown check in select 'HK9'",
    "[tool.hookcli]\nignore = 'HK01x'": "[tool.hookcli]: unknown check in ignore 'HK01x'; did you mean HK010 or HK011",
    "[tool.hookcli]\nselect = 'max-params'": "[tool.hookcli]: HK022 (max-params) has no default: give max-params",
    "[tool.hookcli]\nmax-params = 'lots'": "[tool.hookcli] max-params=lots: give a number, such as 25M",
    "[tool.hookcli]\neval = true": "[tool.hookcli]: unknown key 'eval': write train = false",
    "[tool.hookcli]\nmode = 'eval'": "[tool.hookcli]: unknown key 'mode': write train = true, or train = false",
    "[tool.hookcli]\nmodel = 'net.py:Net'\ndevice = 'no'": "[tool.hookcli]: device no: not available; available: ",
    "[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '2y3'": "[tool.hookcli]: input '2y3': give sizes as in ",
    "[tool.hookcli]\nmodel = 'net.py:Net'\nops = 'x'": "[tool.hookcli]: ops x: checks judge PyTorch's functions",
    "[tool.hookcli]\nmodel = 'net.py:Net'\nagainst = 'no.json'": "[tool.hookcli]: no.json: can't be read as a baseline",
    "[tool.hookcli]\nmodel = 'net.py:Net'\ndata = 'net.py:no'": "[tool.hookcli]: net.py: unknown name 'no'",
    "[tool.hookcli]\nmodel = 'net.py:Net'\ninput = '2x3'\ndata = 'net.py:no'": "[tool.hookcli]: input and data: one ",
    "[tool.hookcli]\nmodels = ['net.py:Net']\nagainst = ''": "against = '': give text in quotes, not empty",
    "[tool.hookcli]\nmodels = [{model = 'net.py:Net', fill = 'no'}]": "'net.py:Net': unknown fill 'no'; choose from: ",
    "[tool.hookcli]\ndtype = 'float32'\nmodels = [{model = 'net.py:Net', input = '2x3:flot32'}]": "models "
    "'net.py:Net': unknown dtype 'flot32'; did you mean float32",
    "[tool.hookcli]\nselect = 'HK021'": "select: HK021 (unexpected-output) is selected but can't",
    "[tool.hookcli]\nmeta = true\nrepeat = 2": "[tool.hookcli]: meta and repeat: without values there is "
    "nothing to compare; leave one out",
    "[tool.hookcli]\nbackward = false\nloss = 'sum'": "[tool.hookcli]: backward = false and loss: nothing is",
    "[tool.hookcli]\nfail-on = 'never'": "[tool.hookcli] fail-on: unknown fail-on 'never'",
    "[tool.hookcli]\nexpect-output = 'axb'": "[tool.hookcli] expect-output: 'axb': give a shape",
    "[[tool.hookcli.models]]\nmodel = 'a'\nfail-on = 'error'": "models 'a' fail-on: applies to all models",
    "[[tool.hookcli.models]]\nmodel = 'net.py:Net'\nignor = 'HK01'": "models 'net.py:Net': unknown key 'ignor'; did "
    "you mean ignore?",
}


@pytest.mark.parametrize("text", WRONG_FILES)
def test_a_wrong_file_is_told_with_its_key(cli: Cli, text: str) -> None:
    write(text)
    ran = cli("check", *([] if "model" in text else ["net.py:Net"]))
    assert (ran.code, ran.out) == (2, "") and len(ran.err.splitlines()) == 1 and "Traceback" not in ran.err
    assert ran.err.startswith("hookcli: error: pyproject.toml") and WRONG_FILES[text] in ran.err, ran.err


WRONG_OPTIONS: dict[tuple[str, ...], str] = {
    ("--select", "HK0112"): "unknown --select 'HK0112'; did you mean HK011 or HK012",
    ("--select", "dead-unit"): "unknown --select 'dead-unit'; did you mean dead-units",
    ("--ignore", "everything"): "unknown --ignore 'everything'; `hookcli check --list` lists them",
    ("--ignore", "HK"): "no check is left to run",
    ("--select", "HK021"): "HK021 (unexpected-output) is selected but can't judge: give --expect-output",
    ("--select", "changed"): "HK027 (changed) is selected but can't judge: give --against",
    (
        "--select",
        "HK006,HK01",
        "--no-backward",
    ): "HK006 (never-called) is selected but can't judge: remove --no-back",
    ("--select", "HK012", "--meta"): "HK012 (vanishing-gradients) is selected but can't judge: remove --meta",
    ("--select", "HK022"): "HK022 (max-params) has no default: give --max-params",
    ("--threshold", "HK012"): "--threshold HK012: give ID=FIGURE, as in HK012=1e-6",
    ("--threshold", "HK012=much"): "--threshold HK012=much: give a number, such as 0.0001",
    ("--threshold", "HK010=1.5"): "out of range; HK010 (dead-units) takes 0 to 1",
    ("--threshold", "HK010=nan"): "--threshold HK010=nan: give a number",
    ("--threshold", "HK001=1"): "HK001 (crash) has no threshold",
    ("--max-params", "lots"): "--max-params=lots: give a number, such as 25M",
    ("--max-activation-memory", "5GO"): "give a number, such as 512MiB",
    ("--fail-on", "warnings"): "unknown --fail-on 'warnings'; did you mean warning?",
    ("--expect-output", "2x"): "--expect-output '2x': give a shape such as *x1000",
    ("--meta", "--split-batch"): "--meta and --split-batch: without values there is nothing to compare; leave one out",
    ("--no-backward", "--loss", "sum"): "--no-backward and --loss: nothing is differentiated",
    ("--no-backward", "--max-activation-memory", "1GiB"): "--no-backward and --max-activation-memory",
    ("--device", "meta"): "--device meta: no values to check; --meta runs the checks that need none",
    ("--config", "no.toml"): "--config no.toml: no such file",
    ("--report", "x.jsn"): "--report x.jsn: unknown suffix '.jsn'; did you mean .json",
    ("--report", "no/x.json"): "--report no/x.json: can't write to no/",
    ("--report", "."): "--report .: is a folder",
    ("--no-backward", "--threshold", "HK024=1"): "--no-backward and --max-activation-memory",
    ("--columns", "id"): "--columns: unknown column 'id'",
    ("--repeat", "0"): "--repeat",
}


@pytest.mark.parametrize("argv", WRONG_OPTIONS, ids=" ".join)
def test_a_wrong_option_is_told(cli: Cli, argv: tuple[str, ...]) -> None:
    ran = cli("check", "net.py:Net", *IN, *argv)
    assert (ran.code, ran.out) == (2, "") and len(ran.err.splitlines()) == 1
    assert ran.err.startswith("hookcli: error: ") and WRONG_OPTIONS[argv] in ran.err, ran.err


def test_other_mistakes(cli: Cli) -> None:
    ran = cli("check", "parts.py:Reads", *IN, "--meta")
    assert ran.code == 2 and "remove --meta" in ran.err
    assert "--meta: parts.py:Reads reads values while it runs" in ran.err
    assert "unknown model 'resnt'" in cli("check", "resnt").err
    ran = cli("shapes", "net.py:Net", *IN, "-f", "sarif")
    assert ran.code == 2 and "--format sarif: only for `hookcli check` (" in ran.err
    assert ", junit" not in ran.err.replace("sarif: shows", "")


# What documents them.


@pytest.mark.sweep
def test_every_check_is_listed_and_explained(cli: Cli) -> None:
    rows = {row["check"]: row for row in reports(cli("check", "--list", "-f", "json"))[0]["rows"]}
    for kind in known_checks():
        assert rows[kind.id]["name"] == kind.name and rows[kind.id]["severity"] == kind.severity
        ran = cli("explain", kind.id)
        assert ran.code == 0 and ran.out.startswith(f"{kind.id} {kind.name} ({kind.severity})\n\n")
        texts = ran.out.split("\n\n")
        assert texts[2].startswith("Usually means  ") and "\nTry            " in texts[2]  # below the first sentence
        assert (f"--ignore {kind.id}" in ran.out) == (kind.id != "HK001")  # a crash is always told
        assert max(map(len, ran.out.splitlines())) <= 100 and len(kind.explanation()) > len(kind.means)
    assert rows["HK012"]["asked_by"] is None and rows["HK026"]["asked_by"] == "--split-batch"


def test_the_items_of_a_list_stay_lines_of_their_own(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """Something is wrong.

    Not reported:
    - what a long sentence names, which is on more than one line in the docstring, and so
      it is in the terminal
    - another
    """
    kind = find_check("dead-units")
    monkeypatch.setattr(kind, "__doc__", text)
    long = "what a long sentence names, which is on more than one line in the docstring, and so it is in the terminal"
    assert kind.explanation() == f"Something is wrong.\n\nNot reported:\n- {long}\n- another"
    folded = f"{long.removesuffix(' terminal')}\n  terminal"
    assert f"\nNot reported:\n- {folded}\n- another\n" in cli("explain", "HK010").out


def test_explain_by_name_and_the_nearest(cli: Cli) -> None:
    assert "HK010 dead-units" in cli("explain", "dead-units", "HK011").out
    ran = cli("explain", "HK31")
    assert ran.code == 2 and "unknown check 'HK31'; did you mean" in ran.err


@pytest.mark.sweep
def test_as_a_process_and_mistakes_need_no_torch() -> None:
    command = [sys.executable, "-m", "hookcli", "check", "parts.py:Unused", *IN]
    ran = forks.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and ran.stderr == "" and "\nHK006  warning  extra: " in ran.stdout
    code = (
        "import sys; from hookcli.cli import main\n"
        "main(['explain', 'HK012']); main(['check', '--list'])\n"
        "assert main(['check', '--select', 'HK99']) == main(['check', '--max-params', 'x']) == 2\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert forks.run([sys.executable, "-c", code], fresh=True, capture_output=True, check=False).returncode == 0
