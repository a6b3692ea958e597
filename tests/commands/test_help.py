"""Help: one screen after -h, 25 options after --help, everything after --help all, held against golden files at 80
columns."""

from __future__ import annotations

import inspect
import os
import pty
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import forks
import pytest
from typer.main import get_command

from hookcli.commands import COMMANDS, MODULES, QUESTIONS, help_pages
from hookcli.commands.app import build_app
from hookcli.commands.options import SEVERAL, SHARED
from hookcli.probes.shapes import ShapesProbe
from hookcli.reporters.selection import offered
from hookcli.sources.losses import NAMED

Cli = Callable[..., Any]
GOLDEN = Path(__file__).parent.parent / "golden" / "help"
OF_CAPABILITIES = Path(__file__).parent.parent / "capabilities"
CORE = {name for name, module in MODULES.items() if module == f"hookcli.commands.{name}"}
LENGTHS = (("-h",), ("--help",), ("--help", "all"))
BACKWARD = ("grads", "graph", "trace", "comm", "check", "diff")


def test_golden_first_page(cli: Cli, request: pytest.FixtureRequest) -> None:
    pages = [cli(*words) for words in (("-h",), ("--help",))]
    assert len({page.out for page in pages}) == 1 and {page.code for page in pages} == {0}
    assert pages[0].out.count("\n") <= 40 and max(map(len, pages[0].out.splitlines())) <= 80
    every = cli("--help", "all").out
    assert all(f"\n  {name} " in every and line.rstrip(".") in every for name, line in COMMANDS.items())
    compare("hookcli", of_the_core(every), request)


def test_hookcli_alone_fits_a_screen_with_its_command_and_the_prompt(cli: Cli, request: pytest.FixtureRequest) -> None:
    page = cli()
    lines = page.out.splitlines()
    assert page.code == 0 and len(lines) <= 24 - 2 and max(map(len, lines)) <= 80
    named = {word.strip(",") for line in page.out.splitlines() if line.startswith("      ") for word in line.split()}
    assert CORE <= named <= {*COMMANDS, "..."} and "All commands: hookcli --help" in page.out
    compare("first", of_the_core(page.out), request)


@pytest.mark.parametrize("command", COMMANDS)
def test_golden(cli: Cli, command: str, request: pytest.FixtureRequest) -> None:
    pages = [cli(command, *words) for words in LENGTHS]
    assert {(page.code, page.err) for page in pages} == {(0, "")}
    first, usual, whole = (page.out for page in pages)
    assert len(first.splitlines()) <= 24 - 1 and "--help all" in first
    assert options_on(first) <= options_on(usual) <= options_on(whole) and len(options_on(usual)) <= 25
    more = len(options_on(whole) - options_on(usual))
    assert usual.endswith(f"\n{more} more option{'s' * (more > 1)}: hookcli {command} --help all\n" if more else whole)
    assert all("Examples:" in page for page in (first, usual, whole))
    cut = [line for line in first.splitlines() if line.endswith("...") and not line.startswith("Usage:")]
    assert all(re.search(r"[\w.:-]+, [\w.:-]+, \.\.\.$", line) for line in cut), cut  # lists, no sentences
    text = f"\n{'=' * 80}\n\n".join([first, usual, whole] if more else [first, usual])
    assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
    for clutter in ("<=x", "[x>=", "{", "[[", "<str>", "[default:"):
        assert clutter not in text
    compare(command, text, request)


def test_commands_of_others_displace_none_of_hookcli_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is full by hookcli's own: what others add is only named, and only where there is room."""
    alone = help_pages.commands_page("About.")
    others = [f"other{n}" for n in range(3)]
    first, *rest = QUESTIONS
    monkeypatch.setattr(
        help_pages,
        "QUESTIONS",
        {first: ("other0", *QUESTIONS[first], *others[1:])} | {name: QUESTIONS[name] for name in rest},
    )
    monkeypatch.setattr(help_pages, "COMMANDS", COMMANDS | dict.fromkeys(others, "Show another thing."))
    monkeypatch.setattr(help_pages, "foreign_commands", lambda: {*others})
    page = help_pages.commands_page("About.")
    assert f"  Further:     {', '.join(others)}\n" in page and page.count("\n") < 40
    gone = {line for line in alone.splitlines() if line.startswith("  ") and line not in page}
    assert {line.split()[0] for line in gone} <= {*QUESTIONS[rest[-1]]}, gone
    assert f"\n      {', '.join(QUESTIONS[first])}\n" in help_pages.first_page()


def options_on(page: str) -> set[str]:
    """The names of the options that a page lists, the last one where an option has several."""
    return {match[0].split()[-1] for match in re.finditer(r"^  (-\w,|   ) --[\w-]+|^  -\w(?=  )", page, re.MULTILINE)}


def of_the_core(page: str) -> str:
    """The page without the commands of capabilities, so that a new one changes no golden file of others."""
    others = "|".join([*map(re.escape, COMMANDS.keys() - CORE), r"\.\.\."])
    page = re.sub(rf"^  (?:{others}) .*\n", "", page, flags=re.MULTILINE)
    return re.sub(
        r"^(    .*|  Further: .*)$",
        lambda line: re.sub(rf"\b(?<!-)(?:{others}), |, (?:{others})\b", "", line[0]),
        page,
        flags=re.MULTILINE,
    )


def compare(name: str, text: str, request: pytest.FixtureRequest) -> None:
    """Hold a page against its golden file, or write that anew."""
    own = MODULES.get(name, "").startswith("hookcli.capabilities.")
    path = OF_CAPABILITIES / name.replace("-", "_") / "help.txt" if own else GOLDEN / f"{name}.txt"
    if request.config.getoption("--golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_in_its_whole_help(cli: Cli, command: str) -> None:
    app: Any = get_command(build_app())
    text = cli(command, "--help", "all").out
    options = [one for one in app.commands[command].params if one.param_type_name == "option"]
    assert options or command in ("explain", "schema", "skill")
    assert [o.opts for o in options if not any(f" {name}" in text for name in (*o.opts, *o.secondary_opts))] == []


def test_first_page_lists_every_command_once_with_the_first_line_of_its_help() -> None:
    assert sorted(name for names in QUESTIONS.values() for name in names) == sorted(COMMANDS)
    for name, line in COMMANDS.items():
        assert inspect.getdoc(getattr(import_module(MODULES[name]), name.replace("-", "_"))).splitlines()[0] == line


def test_choices_are_listed_where_they_are_chosen(cli: Cli) -> None:
    shapes = " ".join(cli("shapes", "--help", "all").out.split())
    assert ", ".join(column.name for column in ShapesProbe.columns) in shapes
    for command in BACKWARD:
        text = " ".join(cli(command, "--help", "all").out.split())
        assert all(loss in text for loss in NAMED) and ", ".join(offered(command)) in text


@pytest.mark.sweep
def test_options_of_several_processes_stand_only_where_they_do_something(cli: Cli) -> None:
    having = {name for name in COMMANDS if "--nproc N" in cli(name, "--help", "all").out}
    assert having == {"inputs", "activations", "grads", "graph", "trace", "comm", "memory"}
    assert set(SEVERAL) < SHARED
    assert cli("shapes", "--nproc", "2").code == 2


@pytest.mark.sweep
def test_help_is_in_colour_on_a_terminal_alone() -> None:
    for color in (True, False):
        parent, child = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"} | ({} if color else {"NO_COLOR": "1"})
        command = [sys.executable, "-m", "hookcli", "shapes", "-h"]
        ran = forks.run(command, stdout=child, stderr=child, env=env, check=False)
        os.close(child)
        text = os.read(parent, 100_000).decode().replace("\r\n", "\n")
        os.close(parent)
        assert ran.returncode == 0 and ("\x1b[1;32mUsage:" in text) == color
        plain = text.replace("\x1b[0m", "")
        for code in ("1;32", "1;36", "36"):
            plain = plain.replace(f"\x1b[{code}m", "")
        assert plain == (GOLDEN / "shapes.txt").read_text().split("=" * 80)[0].rstrip("\n") + "\n"
