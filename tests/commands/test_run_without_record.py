"""Where no record can be written the script runs all the same: its output, its exit code, and one line that tells."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import forks
from commands.trained import TRAIN
from record.launching.support import ENV

from hookcli.commands.option_fields import moved_before
from hookcli.commands.run import RunOptions

SCRIPT = "import sys\nprint('ran', *sys.argv[1:])\nsys.exit(7)\n"
RUN = (sys.executable, "-m", "hookcli", "run")


def test_a_full_disk(tmp_path: Path) -> None:
    limited = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n{dedent(TRAIN)}\nsys.exit(7)"
    (tmp_path / "train.py").write_text(limited)
    ran = forks.run((*RUN, "train.py", "a"), cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 7 and ran.stdout.endswith("['a']\n")
    warning, summary, note = ran.stderr.splitlines()
    assert warning.startswith("hookcli: warning: can't write ") and "train.run.jsonl: File too large" in warning
    assert "5 steps of 1 model" in summary and summary.endswith("; no record was kept")
    assert "File too large; nothing was recorded from then on" in note
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_folder_that_takes_no_files(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = (*RUN, str(tmp_path / "script.py"))
    ran = forks.run(command, cwd="/sys", env=ENV, capture_output=True, text=True, timeout=60)  # nor of root
    assert (ran.returncode, ran.stdout) == (7, "ran\n")
    assert len(ran.stderr.splitlines()) == 1 and "the script runs without being recorded" in ran.stderr


def test_a_question_that_a_record_answers_is_refused(tmp_path: Path) -> None:
    """A check that judged nothing would pass."""
    (tmp_path / "script.py").write_text(SCRIPT)
    for option in (["--check"], ["--rule", "loss > 1"], ["--first-bad", "stop"]):
        command = (*RUN, "-q", *option, str(tmp_path / "script.py"))
        ran = forks.run(command, cwd="/sys", env=ENV, capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith(f"hookcli: error: {option[0]}: can't write a record in this folder: ")
    quiet = forks.run((*RUN, "-q", str(tmp_path / "script.py")), cwd="/sys", env=ENV, capture_output=True, text=True)
    assert quiet.returncode == 7 and "without being recorded" in quiet.stderr


PARSES = """
    import argparse, sys
    argparse.ArgumentParser().parse_args() if "fail" not in sys.argv else 1 / 0
"""


def test_an_option_of_hookcli_behind_the_script(tmp_path: Path) -> None:
    """A line with the right order comes before the script's own error."""
    (tmp_path / "train.py").write_text(dedent(PARSES))
    how: dict[str, Any] = {"cwd": tmp_path, "env": ENV, "capture_output": True, "text": True, "timeout": 60}
    ran = forks.run((*RUN, "train.py", "--every", "5"), **how)
    plain = forks.run((sys.executable, "train.py", "--every", "5"), **how)
    meant = "options meant for hookcli go before the program: hookcli run --every 5 train.py\n"
    assert (ran.returncode, ran.stdout) == (plain.returncode, plain.stdout) == (2, "")
    assert ran.stderr.startswith(f"hookcli: warning: {meant}{plain.stderr}")
    failed = forks.run((*RUN, "train.py", "--every", "5", "fail"), **how)
    assert failed.returncode == 1 and "options meant" in failed.stderr


def test_the_command_line_that_was_meant() -> None:
    launched = moved_before(RunOptions(output="a b"), ["torchrun", "--every=5", "--hist", "train.py"])
    assert launched == "hookcli run --output 'a b' --every=5 --hist torchrun train.py"
    module = moved_before(RunOptions(module=True, every=3), ["pkg.train", "--first-bad", "stop", "-x"])
    assert module == "hookcli run --every 3 -m --first-bad stop pkg.train -x"
    assert moved_before(RunOptions(), ["train.py", "--output", "x", "--lr", "1"]) == ""


def test_a_folder_that_was_deleted(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "work").mkdir()
    program = (
        "import os, sys\n"
        "os.rmdir(os.getcwd())\n"
        "from hookcli.cli import main\n"
        f"sys.exit(main(['run', {str(tmp_path / 'script.py')!r}, 'a']))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ran = forks.run(
        [sys.executable, "-c", program], cwd=tmp_path / "work", capture_output=True, text=True, env=environment
    )
    assert (ran.returncode, ran.stdout) == (7, "ran a\n"), ran.stderr
    assert len(ran.stderr.splitlines()) == 1 and "the script runs" in ran.stderr, ran.stderr
