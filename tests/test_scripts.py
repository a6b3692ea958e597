"""Realistic scripts that know nothing of hookcli: what they print, save and return is the same with and without it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import forks
import pytest
import torch
from record.launching.small import SCRIPTS
from record.launching.support import ENV
from support import swept

FOLDER = Path(__file__).parent / "scripts"
ARGUMENTS = {
    "classify": ("--batch-size", "8", "--images", "24", "--image-size", "8"),
    "gpt": ("--checkpointing",),
    "gan": (),
}
RUN = ("-m", "hookcli", "run", "--every", "2", "--output", "record.jsonl")


@dataclass(frozen=True)
class Ran:
    code: int
    out: bytes
    err: bytes
    folder: Path


def python(folder: Path, *arguments: str, fresh: bool = False) -> Ran:
    folder.mkdir(exist_ok=True)
    done = forks.run([sys.executable, *arguments], cwd=folder, env=ENV, capture_output=True, timeout=300, fresh=fresh)
    return Ran(done.returncode, done.stdout, done.stderr, folder)


def command(name: str) -> tuple[str, ...]:
    return str(FOLDER / f"{name}.py"), *ARGUMENTS[name], "--out", "weights.pt"


def tensors(saved: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    for key, value in saved.items():
        if isinstance(value, torch.Tensor):
            yield f"{path}{key}", value
        else:
            yield from tensors(value, f"{path}{key}.")


@pytest.mark.parametrize("name", [*map(swept, ("gpt", "classify", "gan"))])
def test_a_realistic_script(name: str, tmp_path: Path) -> None:
    alone, seen = python(tmp_path / "alone", *command(name)), python(tmp_path / "seen", *RUN, *command(name))
    assert (alone.code, seen.code) == (0, 0), seen.err.decode()
    named = f"hookcli: recording in {seen.folder / 'record.jsonl'}\n".encode()
    assert seen.out == alone.out and seen.err.replace(named, b"").startswith(alone.err)
    files = sorted(alone.folder.glob("*.pt"))
    assert "weights.pt" in [file.name for file in files]
    for file in files:
        before, after = (dict(tensors(torch.load(ran.folder / file.name))) for ran in (alone, seen))
        assert before.keys() == after.keys() and len(before) > 20
        assert all(torch.equal(before[key], after[key]) for key in before)
    lines = [json.loads(line) for line in (seen.folder / "record.jsonl").read_text().splitlines()]
    assert [lines[0]["line"], lines[-1]["line"], lines[-1]["error"]] == ["run", "end", None]
    assert sum(line["line"] == "step" for line in lines) >= 3


NASTY = (
    "exit 3", "syntax", "chained", "SIGINT", "fork", "the end", "deletes its folder", "recursion", "excepthook",
    "no stderr",
)  # fmt: skip


@pytest.mark.parametrize("name", [n if n in ("exit 3", "SIGINT", "recursion", "the end") else swept(n) for n in NASTY])
def test_a_nasty_script(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(dedent(SCRIPTS[name]).lstrip())
    fresh = name == "recursion"  # to whose depth every frame counts
    alone, seen = (python(tmp_path, *command, fresh=fresh) for command in ((str(script),), (*RUN, str(script))))
    assert (seen.code, seen.out) == (alone.code, alone.out) and seen.err.startswith(alone.err)
    assert json.loads((tmp_path / "record.jsonl").read_text().splitlines()[-1])["line"] == "end"
