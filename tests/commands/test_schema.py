"""The JSON that hookcli writes is what `hookcli schema` says, errors included; the skill's commands run."""

from __future__ import annotations

import importlib.resources
import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from documentation.test_commands import parsed
from probes import routed_models
from safetensors.torch import save_file

import hookcli
from hookcli.commands import COMMANDS, MODULES
from hookcli.errors import ERRORS, OneTensorError, ToldError, error_ids
from hookcli.probes.base import Probe
from hookcli.table import Column, Report, document
from hookcli.table.column import Kind
from hookcli.table.columns import DECLARED
from hookcli.table.json_schema import document_schema

NET = ("net.py:Net", "-i", "2x3x4x4")
WIDTHS = ("--arg", "out_features=2,3,4")
MEAN = ("-i", "16x2", "--loss", "mean")
RUNS: dict[str, tuple[str, ...]] = {
    **{name: (name, *NET) for name in ("shapes", "activations", "inputs", "grads", "graph", "flow", "trace", "memory")},
    "shapes of operators": ("shapes", *NET, "--ops", "functions"),
    "statistics with histograms": ("activations", *NET, "--hist"),
    "a crash": ("activations", "net.py:Net", "-i", "2x3x4x5"),
    "check": ("check", *NET),
    "page of a crash": ("report", "net.py:Net", "-i", "2x3x4x5"),
    "hooks": ("hooks", "net.py:Net"),
    "models": ("models", "resnet*"),
    "weights": ("weights", "x.safetensors"),
    "package": ("package", "net.py:Net"),
    "plugins": ("plugins",),
    "sweep": ("sweep", *NET),
    "coord-check": ("coord-check", "torch.nn:Linear", "--arg", "in_features=2", *WIDTHS, "-i", "2x2", "--steps", "1"),
    "noise-scale": ("noise-scale", "torch.nn:Linear", "--arg", "in_features=2", "--arg", "out_features=2", *MEAN),
    "kv-cache": ("kv-cache", "hf:gpt2", *("--arg", "n_layer=2", "--arg", "n_embd=24", "--arg", "vocab_size=9")),
    "experts": ("experts", "routed.py:Listed", "-i", "6x8"),
    "spectrum": ("spectrum", *NET),
    "formats": ("formats", *NET),
    "effect of formats": ("formats", *NET, "--effect"),
    "formats of channels": ("formats", *NET, "--channels"),
    "attention": ("attention", "attending.py:Net", "-i", "2x3x4"),
    "kinds of hooks": ("plugins", "--hooks"),
    "diff": ("diff", "net.py:Net", "net.py:Net --edit fc:output=scale(2)", *NET[1:]),
    "nothing in common": ("diff", "x.safetensors", "y.safetensors"),
    "diff of reports": ("diff", "a.json", "a.json"),
    "diff of weights": ("diff", "x.safetensors", "x.safetensors"),
    "timed": ("shapes", *NET, "--time"),
    "record": ("show", "train.run.jsonl"),
}
ATTENDING = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x)[0]
"""
VALID = jsonschema.Draft202012Validator(document_schema(errors=error_ids()))


def validated(text: str, validator: Any = VALID) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    errors = [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(found)]
    assert not errors, errors[:3]
    return found


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(VALID.schema)
    assert set(VALID.schema["$defs"]["row"]["properties"]) == {*DECLARED}


@pytest.mark.parametrize("name", RUNS)
def test_what_commands_write(cli: Any, net: Path, name: str) -> None:
    """By the schema of all commands, and by that of the one, which knows each column that the report names."""
    for letter in "xy":
        save_file({letter: torch.randn(4, 4)}, f"{letter}.safetensors")
    (net / "attending.py").write_text(ATTENDING)
    (net / "routed.py").write_text(Path(routed_models.__file__).read_text())
    argv = RUNS[name]
    if "a.json" in argv:
        cli("activations", *NET, "-o", "a.json", "-q")
    if argv[0] == "show":
        made: dict[str, Any] = {}
        exec((net / "net.py").read_text(), made)
        model, x = made["Net"](), torch.randn(2, 3, 4, 4)
        with hookcli.watch(model, every=1, output="train.run.jsonl"):
            for _ in range(3):
                model(x).square().mean().backward()
    ran = cli(*argv, "--format", "json", "-q")
    found = validated(ran.out)
    empty = ("check", "hooks")  # of this model
    assert found["reports"] and all(report["rows"] or name in empty for report in found["reports"]), ran.err
    assert (
        ("error" in found)
        == (ran.code == 2)
        == (name in ("a crash", "page of a crash", "package", "nothing in common"))
    )
    own = cli("schema", argv[0])
    if own.code == 0:
        validated(ran.out, jsonschema.Draft202012Validator(json.loads(own.out)))


def test_wrong_commands(cli: Any) -> None:
    assert "its columns depend on what it is given" in cli("schema", "explain").err
    assert "unknown command 'shape'; did you mean shapes?" in cli("schema", "shape").err


def test_every_command_is_here() -> None:
    """The core's documents; a capability's are validated by its tests, or here."""
    core = {name for name, module in MODULES.items() if module == f"hookcli.commands.{name}"}
    assert core - {"run", "explain", "schema", "skill"} <= {argv[0] for argv in RUNS.values()} <= {*COMMANDS}


def test_a_wrong_document_is_found() -> None:
    (report,) = hookcli.capture(torch.nn.Linear(3, 2), torch.ones(1, 3), ["shapes"])
    good = document([report])
    for path, value in (("params", -1), ("params", "8"), ("fqn", 3), ("output_shape", "1x2")):
        bad = json.loads(json.dumps(good))
        bad["reports"][0]["rows"][0][path] = value
        with pytest.raises(AssertionError):
            validated(json.dumps(bad))


def test_columns_of_a_plugin() -> None:
    """A column of its own is described by its unit and meaning, and its values are tested."""
    column = Column("share", "Share", "elements", Kind.SHARE, explanation="Share: of what.")

    class Mine(Probe):
        name = "mine"
        columns = (DECLARED["fqn"], column)

        def attach(self, session: Any) -> None: ...
        def rows(self) -> list[Any]:
            return []

    made = document_schema(Mine.columns)
    assert made["$defs"]["row"]["properties"]["share"]["x-unit"] == "elements"
    assert made["$defs"]["row"]["properties"]["share"]["description"] == "Share: of what."
    assert made["$defs"]["row"]["properties"]["fqn"]["x-identity"]
    whole = document([Report("mine", "m", Mine.columns, ())])
    whole["reports"][0]["rows"] = [{"fqn": "", "share": "half"}]
    assert not jsonschema.Draft202012Validator(made).is_valid(whole)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("shapes", "nothing.py:Net"), "HKE001"),
        (("shapes", "--widht", "3"), "HKE001"),
        (("activations", "net.py:boom", "-i", "2x3x4x4"), "HKE006"),
        (("activations", *NET, "--format=json", "--match", "no*"), "HKE001"),
        (("shapes", "nothing.py:Net", "-qfjson"), "HKE001"),
    ],
)
def test_errors(cli: Any, net: Path, argv: tuple[str, ...], expected: str) -> None:
    """One document on stdout, the same line as ever on stderr, exit code 2; without --format json no document."""
    own = {"--format=json", "-qfjson"}
    ran = cli(*argv, *(() if own & {*argv} else ("--format", "json")))
    error = validated(ran.out)["error"]
    assert (ran.code, error["id"], error["exit_code"]) == (2, expected, 2)
    assert error["message"].splitlines()[0] in ran.err and ran.err.startswith("hookcli: error: ")
    plain = cli(*(word for word in argv if word not in own))
    assert (plain.code, plain.out) == (2, "") and plain.err == ran.err


def test_a_file_gets_no_error_alone(cli: Any, net: Path) -> None:
    ran = cli("shapes", "nothing.py:Net", "--format", "json", "-o", "x.json")
    assert (ran.code, ran.out) == (2, "") and not Path("x.json").exists()


def test_ids_are_fixed(cli: Any) -> None:
    """They are never given to another error."""
    expected = {
        "HKE000": "BugError",
        "HKE001": "UsageError",
        "HKE002": "RefusedError",
        "HKE003": "NoGradientsError",
        "HKE004": "UnknownRowError",
        "HKE005": "PluginError",
        "HKE006": "ModelError",
        "HKE007": "CommHookError",
        "HKE008": "HookcliError",
    }
    assert {kind("").id: kind.__name__ for kind in ERRORS} == expected and {*error_ids()} == {*expected}
    assert OneTensorError((), True).id == "HKE002" and ToldError("").id == "HKE008"
    assert cli("explain", "hke006").out.startswith("HKE006 (error)\n\nThe model itself failed")
    assert "HKE007" in cli("explain").out


def test_the_skill(cli: Any) -> None:
    """It is what the package ships, and every command in it can be typed; so can those of docs/agents.md."""
    text = cli("skill").out
    assert text == importlib.resources.files("hookcli.commands").joinpath("skill.md").read_text()
    assert re.match(r"---\nname: hookcli\ndescription: .{20,1000}\n---\n", text)
    commands = [line for line in re.findall(r"`(hookcli [^`]+)`", text) if "COMMAND" not in line]
    assert len(commands) > 10
    for line in commands:
        parsed(line)
        assert shlex.split(line)[1] in COMMANDS
