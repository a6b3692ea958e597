"""A pyproject.toml can be anything: one line says what it is, and nothing else happens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BIG = "9" * 5000
ODD: dict[str, bytes] = {
    "not UTF-8": b"\xff\xfe[tool.hookcli]\n",
    "not TOML": b"[tool.hookcli\n",
    "a huge integer": f"[tool.hookcli]\nseed = {BIG}\n".encode(),
    "a large seed": f"[tool.hookcli]\nseed = {2**63}\n".encode(),
    "a large batch": f"[tool.hookcli]\nbatch-size = {10**30}\n".encode(),
    "a large figure": f"[tool.hookcli]\nmax-params = {10**400}\n".encode(),
    "hexadecimal": b"[tool.hookcli]\nrepeat = 0x" + b"f" * 5000 + b"\n",
    "infinite": b"[tool.hookcli]\nrtol = inf\n",
    "nan": b"[tool.hookcli]\nrtol = nan\n",
    "deep": b"[tool.hookcli]\nmodels = " + b"[" * 1000 + b"]" * 1000 + b"\n",
    "deeper": b"[tool.hookcli]\nx = " + b"{a=" * 3000 + b"1" + b"}" * 3000 + b"\n",
    "deep keys": b"[" + b".".join([b"tool", b"hookcli", *[b"a"] * 2000]) + b"]\n",
    "long text": b"[tool.hookcli]\nseed = '" + b"x" * 100_000 + b"'\n",
    "a list": b"tool = [1]\n",
    "text": b"[tool]\nhookcli = 'yes'\n",
    "a date": b"[tool.hookcli]\nseed = 2026-01-01\n",
    "models of numbers": b"[tool.hookcli]\nmodels = [1, 2]\n",
    "models of tables": b"[tool.hookcli]\nmodels = [{model = ['a']}]\n",
    "a flag for a number": b"[tool.hookcli]\nseed = true\n",
    "a number for texts": b"[tool.hookcli]\nselect = [1]\n",
    "thresholds": b"[tool.hookcli]\nthresholds = [1]\n",
    "thresholds of lists": b"[tool.hookcli]\nthresholds = {HK012 = [1]}\n",
}


def one_line(ran: Any) -> None:
    assert (ran.code, ran.out) == (2, "") and len(ran.err.splitlines()) == 1, ran.err
    assert ran.err.startswith("hookcli: error: ") and "pyproject.toml" in ran.err and len(ran.err) < 400, ran.err


@pytest.mark.parametrize("kind", ODD)
def test_one_line(cli: Callable[..., Any], net: Path, kind: str) -> None:
    Path("pyproject.toml").write_bytes(ODD[kind])
    one_line(cli("check"))
    one_line(cli("check", "--config", "pyproject.toml"))


def test_a_folder(cli: Callable[..., Any], net: Path) -> None:
    Path("pyproject.toml").mkdir()
    one_line(cli("check"))
    assert "is a folder" in cli("check", "--config", "pyproject.toml").err


def test_one_that_cannot_be_read(cli: Callable[..., Any], net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("pyproject.toml").write_text("")

    def refused(path: Path, *_: object) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("hookcli.commands.config.content", refused)
    one_line(cli("check"))
    assert "pyproject.toml: can't be read as TOML: Permission denied" in cli("check").err
