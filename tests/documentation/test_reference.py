"""The generated reference: every command, option and check is in it. CI builds the site, with warnings as errors."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import typer
from documentation.pages import ROOT

from hookcli.checks.selection import known_checks
from hookcli.commands import COMMANDS
from hookcli.commands.app import build_app

pytestmark = pytest.mark.xdist_group("reference")  # written once


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with patch.object(sys, "path", [str(ROOT / "docs"), *sys.path]):
        from _reference import write

    folder = tmp_path_factory.mktemp("reference")
    write(folder)
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("*.md")}
    write(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.md")} == written  # Sphinx reads only what changed
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command(reference: Path, name: str) -> None:
    page = (reference / "commands" / f"{name}.md").read_text()
    command = typer.main.get_command(build_app()).commands[name]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    for one in options:
        assert any(written in page for written in (*one.opts, *one.secondary_opts)), one.opts
    assert page.startswith(f"# hookcli {name}\n") and all(line in page for line in command.details.examples)
    assert f"- [hookcli {name}]({name}.md)" in (reference / "commands" / "index.md").read_text()


def test_checks(reference: Path) -> None:
    page = (reference / "checks.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        f"## {check.id} {check.name}" for check in known_checks()
    ]


def test_the_api_has_the_public_names(reference: Path) -> None:
    import hookcli

    page = (reference / "api.md").read_text()
    assert [name for name in hookcli.__all__ if f":: hookcli.{name}\n" not in page] == []
