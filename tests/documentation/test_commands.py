"""The commands in the pages: all can be typed, and those of `console` blocks print what the page shows."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Any

import forks
import pytest
import typer
from documentation.pages import PAGES, blocks, tables
from support import swept

from hookcli.commands.app import build_app

WITH_OUTPUT = [name for name, page in PAGES.items() if any(blocks.consoles(page))]
LONG = ("compile", "precision", "memory", "speed", "rank", "rules", "experts", "cause", "attention", "learn", "blame")
LONG += ("resume", "engines", "fp16", "gradients", "refactoring", "dead", "width")
"""Pages whose commands have tests of their own."""


def parsed(line: str) -> None:
    """Parse a command line of hookcli, without running it."""
    words = shlex.split(line.rpartition("-m ")[2] if line.startswith("torchrun") else line, comments=True)
    group: Any = typer.main.get_command(build_app())
    context = group.make_context("hookcli", ["shapes"], resilient_parsing=True)
    if words[1].startswith("-"):  # which would act at once: --install-completion changes a shell's settings
        assert any(words[1] in one.opts for one in group.get_params(context)), line
        return
    if words[1:] == ["dead", "resnet50"]:  # the plugin of docs/plugins.md
        return
    context.resilient_parsing = False
    name, command, rest = group.resolve_command(context, words[1:])
    if not rest:  # the mention of a command
        return
    with contextlib.suppress(typer.Exit):  # after help
        command.make_context(name, rest, parent=context)


def test_every_command_can_be_typed() -> None:
    lines = {line: name for name, page in PAGES.items() for line in blocks.commands(page)}
    assert len(lines) > 100
    wrong = []
    for line, name in lines.items():
        try:
            parsed(line)
        except Exception as error:
            wrong.append(f"{name}: {line}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("line", ["hookcli shapes resnet50 --widht 3", "hookcli shape", "hookcli grads --passes x"])
def test_a_mistake_is_found(line: str) -> None:
    with pytest.raises(typer.TyperException):
        parsed(line)


@pytest.mark.parametrize("page", [swept(page) if Path(page).stem in LONG else page for page in WITH_OUTPUT])
def test_output_is_what_the_commands_print(page: str, tmp_path: Path) -> None:
    blocks.folder_of_examples(tmp_path)
    for _, found in blocks.consoles(PAGES[page]):
        for said in found:
            output = blocks.run(said.command, tmp_path, forks.run)
            assert blocks.same(said.output, output), f"$ {said.command}\n{output}\nscripts/docs {page} writes it anew"
            assert not output.startswith("hookcli: error")


def test_tables_are_those_of_their_sources() -> None:
    assert [name for name, page in PAGES.items() if tables.with_tables(page) != page] == []


def test_a_page_may_show_the_first_lines() -> None:
    assert blocks.same("a 1\n...\n", "a 1\nb 2\n") and not blocks.same("a 1\n...\n", "b 2\na 1\n")
    assert not blocks.same("a 1\n", "a 1\nb 2\n") and blocks.as_shown("a 1\n...\n", "c 3\nb 2\n") == "c 3\n...\n"


def test_only_times_and_last_digits_may_differ() -> None:
    old = "net · 15 ms (hookcli 7 ms)\nLayer  Mean\n───────────\nfc     0.1234 12 NaN\n"
    assert blocks.same(old, old.replace("15 ms", "1.62 s").replace("0.1234", " 0.1235").replace("───", "────"))
    for a, b in (("0.1234", "0.2234"), ("12 NaN", "14 NaN"), ("fc", "conv"), ("NaN", "Inf")):
        assert not blocks.same(old, old.replace(a, b))
