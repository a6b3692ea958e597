"""Commands that are printed for a person to copy."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from records import RUN, save
from support import swept

from hookcli.record.file.reading import read_record
from hookcli.record.file.views.summary import summary
from hookcli.system.escaping import shell_path, shell_word, visible
from hookcli.table.grouping import View

WORDS = [
    "train.run.jsonl",
    "two words",
    "it's",
    "$HOME",
    "",
    "~",
    "new\nline",
    "\x1b[31mred",
    "it's\ta \\n",
    "\x01f",  # an escape that a digit follows
    "\u202eltr",
    "caf\u00e9",
    os.fsdecode(b"\xff\xfe.jsonl"),
]
SHELLS = [shell for shell in ("bash", "zsh", "ksh") if shutil.which(shell)]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("text", WORDS)
def test_a_shell_reads_the_word_that_was_meant(text: str, shell: str) -> None:
    said = shell_word(text)
    assert visible(said) == said
    ran = subprocess.run([shell, "-c", f"printf %s {said}"], capture_output=True, check=True)
    assert ran.stdout == os.fsencode(text)


@pytest.mark.parametrize(
    "name", ["a\n\x1bb.run.jsonl", *map(swept, ("-x.run.jsonl", "--step", os.fsdecode(b"\xff.run.jsonl")))]
)
def test_the_command_that_a_summary_ends_with_shows_the_record(tmp_path: Path, name: str) -> None:
    try:
        path = save(tmp_path / name, RUN)
    except OSError:
        pytest.skip("the file system takes no such name")
    record = read_record(path)
    *_, line = summary(record, record, name, View(width=80)).splitlines()
    command = line.partition("Next: hookcli ")[2]
    ran = subprocess.run(
        ["bash", "-c", f"python -m hookcli {command} --format csv"], cwd=path.parent, capture_output=True, check=False
    )
    assert ran.returncode == 0 and ran.stdout.startswith(b"probe,fqn,"), ran.stderr


def test_only_what_looks_like_an_option_is_changed() -> None:
    assert [shell_path(path) for path in ("a-b", Path("/x/-y"), "-y")] == ["a-b", "/x/-y", "./-y"]
