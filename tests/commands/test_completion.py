"""Completion in bash: of columns, and of words with a colon, which bash takes for several."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hookcli.commands.completion import joined
from hookcli.commands.options import complete_models

CODE = """
from torch import nn
def build(): return nn.Linear(2, 2)
class Net(nn.Module): ...
class _Hidden(nn.Module): ...
"""


@pytest.mark.parametrize(
    ("words", "place", "whole", "at"),
    [
        (["hookcli", "shapes", "net.py", ":"], 3, ["hookcli", "shapes", "net.py:"], 2),
        (["hookcli", "diff", "a.py", ":", "A", "b.py", ":", "B"], 7, ["hookcli", "diff", "a.py:A", "b.py:B"], 3),
        (["hookcli", "shapes", "a.py", ":", "A", ""], 5, ["hookcli", "shapes", "a.py:A", ""], 3),
        (["hookcli", "shapes", "a.py:A"], 2, ["hookcli", "shapes", "a.py:A"], 2),
        (["hookcli", "shapes"], 2, ["hookcli", "shapes"], 2),
    ],
)
def test_words_are_joined_at_colons(words: list[str], place: int, whole: list[str], at: int) -> None:
    assert joined(words, place) == (whole, at)


def test_models_of_a_file_are_those_that_its_text_defines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(CODE)
    assert complete_models("net.py:") == ["net.py:build", "net.py:Net"] and complete_models("net.py:N") == [
        "net.py:Net"
    ]
    assert complete_models("gone.py:") == [] == complete_models("net.py:x")


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_gets_columns_and_what_stands_behind_a_colon(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(CODE)
    program = tmp_path / "hookcli"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hookcli "$@"\n')
    program.chmod(0o755)
    lines = {
        "hookcli shapes net.py :": {"build", "Net"},
        "hookcli shapes net.py : N": {"Net"},
        "hookcli shapes net.py:N": {"net.py:Net"},
        "hookcli shapes --sort mac": {"macs", "macs_share"},
        "hookcli shapes --columns fqn,mac": {"fqn,macs", "fqn,macs_share"},
        "hookcli show --sort x": set[str](),
        "hookcli coord": {"coord-check"},
    }
    script = 'eval "$(hookcli --show-completion bash)"\n'
    for words in lines:
        script += f"COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}; _hookcli_completion hookcli\n"
        script += 'echo "${COMPREPLY[@]}"\n'
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    bash = ["bash", "--norc", "-c", script]
    ran = subprocess.run(bash, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert [set(line.split()) for line in ran.stdout.splitlines()] == [*lines.values()], ran.stderr
