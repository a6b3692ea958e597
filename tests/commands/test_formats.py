"""Each format shows some commands' reports; the others say so before the work, and what would do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records import HEADER, RUN, end, recorded_step, save
from support import swept

from hookcli import registry
from hookcli.commands.output import Output

Cli = Callable[..., Any]
NET = ("net.py:Net", "-i", "2x3x4x4")
COMMANDS: dict[str, tuple[str, ...]] = {
    **{name: (name, *NET) for name in ("shapes", "inputs", "activations", "grads", "graph", "trace", "check")},
    "trace --summary": ("trace", *NET, "--summary"),
    "check --list": ("check", "--list"),
    "diff": ("diff", NET[0], *NET),
    "comm": ("comm", *NET),
    "hooks": ("hooks", NET[0]),
    "package": ("package", NET[0], "--extern", "**"),
    "models": ("models",),
    "plugins": ("plugins",),
    "plugins --hooks": ("plugins", "--hooks"),
    "show": ("show", "a.jsonl"),
    "show --over-time": ("show", "a.jsonl", "--over-time", "."),
}
FORMATS = ("table", "json", "csv", "markdown", "html")
FORMATS_OF = {
    "graph": ("dot", "svg", "png"),
    "grads": ("svg", "png"),
    "trace": ("chrome",),
    "check": ("junit", "sarif", "github"),
}
EXPORTS = ("tensorboard", "parquet", "wandb")  # of any report, with --output
ALL = registry.names("reporters")


def suited(command: str) -> set[str]:
    return {*FORMATS, *FORMATS_OF.get(command, ()), *(["chart", "svg", "png"] if command == "show --over-time" else [])}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_format_that_does_not_suit_is_told_in_one_line_before_the_work(
    cli: Cli, net: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    save(net / "a.jsonl", RUN)
    if not command.startswith("show"):  # whose reports are what is in the file
        monkeypatch.setattr(Output, "write", lambda *_, **__: pytest.fail("the work was done"))
        monkeypatch.setattr("hookcli.engine.prepare.build", lambda *_, **__: pytest.fail("the work was done"))
    wrong = [name for name in ALL if name not in (*suited(command), *EXPORTS, "png")]
    assert len(wrong) >= 3
    for name in wrong:
        ran = cli(*COMMANDS[command], "--format", name)
        assert (ran.code, ran.out) == (2, ""), (name, ran.out)
        assert len(ran.err.splitlines()) == 1 and ran.err.startswith(f"hookcli: error: --format {name}: "), ran.err
        here = set(ran.err.strip().rpartition("; choose from: ")[2].split(", "))
        assert here == suited(command) | set(EXPORTS), command


PLAIN = ("activations", "check", "hooks", "show")  # the others are of their kinds


@pytest.mark.parametrize(
    "command", [name if name in PLAIN else swept(name) for name in COMMANDS if name not in ("comm", "package")]
)
def test_a_format_that_suits_shows_the_report(cli: Cli, net: Path, command: str) -> None:
    save(net / "a.jsonl", RUN)
    for name in suited(command) - {"svg", "png"}:  # which need other programs and libraries
        ran = cli(*COMMANDS[command], "--format", name, "--quiet")
        assert ran.code in (0, 1) and ran.out and "Traceback" not in ran.err, (name, ran.err)


@pytest.mark.parametrize(
    ("command", "name", "how"),
    [
        ("shapes", "a.html", "open it in a browser"),
        ("shapes", "a.json", "`hookcli show a.json` shows it"),
        ("flow", "a.dot", "`dot -Tsvg -O a.dot` draws it"),
        ("trace -f chrome", "a b.json", "open it at https://ui.perfetto.dev"),
    ],
)
def test_what_is_written_to_a_file_ends_with_how_to_open_it(
    command: str, name: str, how: str, cli: Cli, net: Path
) -> None:
    said = cli(*command.split(), "net.py:Net", "-i", "2x3x4x4", "-o", name).err.splitlines()[-1]
    assert said.startswith("hookcli: wrote ") and said.endswith(f"; {how}")
    for picture in ("svg", "png"):  # which need other programs and libraries
        assert registry.load("reporters", picture)().then == "open it in a browser"


def test_a_saved_report_is_shown_in_its_commands_formats(cli: Cli, net: Path) -> None:
    assert cli("graph", *NET, "-o", "graph.json").code == 0
    assert "digraph" in cli("show", "graph.json", "-f", "dot").out
    assert cli("check", *NET, "-o", "check.json").code in (0, 1)
    assert json.loads(cli("show", "check.json", "-f", "sarif").out)["runs"]
    ran = cli("show", "graph.json", "-f", "sarif")
    assert ran.code == 2 and "--format sarif: only for `hookcli check` (" in ran.err


def test_a_run_without_training_has_charts_too(cli: Cli, net: Path) -> None:
    recorded_steps = [recorded_step(step, phase="no_grad", forward=2, std=step) for step in (1, 2)]
    ran = cli("show", str(save(net / "a.jsonl", (HEADER, *recorded_steps, end()))), "--over-time", ".")
    assert ran.code == 0 and "Std of the output" in ran.out, ran.err


def test_help_lists_the_formats_that_suit(cli: Cli) -> None:
    for command in ("shapes", "graph", "trace", "check", "models", "diff"):
        listed = " ".join(cli(command, "--help").out.split())
        assert ", ".join((*FORMATS, *FORMATS_OF.get(command, ()), *EXPORTS)) + " " in listed
    listed = " ".join(cli("show", "--help").out.split())
    assert all(name in listed for name in ALL if name != "table")
