"""`hookcli run`: what a user sees of it, and what ends badly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from commands.trained import TRAIN, lines
from support import swept

from hookcli.record.file.parsing import PART_KINDS
from hookcli.record.file.reading import read_record

Cli = Callable[..., Any]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes `train.py` into the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        (tmp_path / "train.py").write_text(dedent(text))
        return "train.py"

    return write


@pytest.mark.sweep
def test_what_a_run_leaves(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", "--every", "2", script(TRAIN), "--epochs", "3")
    assert ran.code == 0 and ran.out.startswith("loss 0.") and ran.out.endswith("['--epochs', '3']\n")
    recording, headline, *_ = ran.err.splitlines()
    assert recording == f"hookcli: recording in {Path('train.run.jsonl').absolute()}"
    assert headline.startswith("hookcli: train.py: 5 steps of 1 model in ")
    assert "3 recorded steps in train.run.jsonl" in ran.err
    assert ran.err.endswith("\nNext: hookcli report train.run.jsonl\n")
    *found, losses, last = (line for line in lines("train.run.jsonl") if line["line"] not in PART_KINDS)
    [of_modules] = [line["reports"][0] for line in found if line["line"] == "settings"]
    assert of_modules["rows"][1]["attributes"] == {"in_features": 4, "out_features": 8}
    found = [*(line for line in found if line["line"] not in ("losses", "settings")), last]
    assert (losses["line"], losses["model"], losses["first"]) == ("losses", "Sequential", 4)
    assert [line["line"] for line in found] == ["run", *["layout"] * 5, "step", "step", "step", "end"]
    assert found[0]["argv"] == ["train.py", "--epochs", "3"] and [line["step"] for line in found[6:9]] == [0, 2, 4]
    assert 0 < found[6]["at"] < found[7]["at"] < found[8]["at"] < last["seconds"]
    assert found[8]["losses"] == [float(ran.out.split()[1])]
    again = cli("run", "--quiet", "train.py")
    assert again.err == "" and lines("train-2.run.jsonl")[-1]["exit_code"] is None
    shown = cli("show", "train.run.jsonl", "--step", "2")
    assert shown.code == 0 and "|dw|/|w|" in shown.out


@pytest.mark.parametrize(
    ("text", "word", "said"),
    [
        swept("1", "--first-bad", True),
        ("'--first-bad'", "--first-bad", False),
        swept("first_bad = 1", "--first-bad=stop", False),
        ("'a checkpoint to check'", "--check", True),
        swept("import argparse", "--check", False),
        swept("import helps", "--check", False),
        swept("import package", "--check", False),
    ],
)
def test_an_option_after_the_script(text: str, word: str, said: bool, cli: Cli, script: Callable[[str], str]) -> None:
    Path("helps.py").write_text("import sys; sys.argv")
    Path("package").mkdir()
    Path("package", "__init__.py").write_text("")
    ran = cli("run", script(text), word, *(["stop"] if word == "--first-bad" else []))
    warning = f"hookcli: warning: options meant for hookcli go before the program: hookcli run {word}"
    assert ran.code == 0 and (warning in ran.err) is said


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("text", "code"),
    [("import sys; sys.exit(3)", 3), swept("raise SystemExit('no')", 1), swept("1 / 0", 1), ("def f(:", 1), ("", 0)],
)
def test_a_script_that_never_calls_a_module(text: str, code: int, cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", script(text))
    assert (ran.code, ran.out) == (code, "") and "hookcli/" not in ran.err
    assert "no module was called" in ran.err and "no record was kept" in ran.err
    assert not list(Path().glob("*.jsonl"))
    ran = cli("run", "--output", "given.jsonl", script(text))
    assert ran.code == code and "0 recorded steps in given.jsonl" in ran.err
    assert [line["line"] for line in lines("given.jsonl")] == ["run", "end"]


def test_a_file_that_only_defines_a_model_gets_the_command_for_it(cli: Cli, script: Callable[[str], str]) -> None:
    path = script("import torch\nclass Net(torch.nn.Module): pass")
    *_, last = cli("run", path).err.splitlines()
    assert last == f"Next: hookcli shapes {path}:Net"
    assert "Next: " not in cli("run", script("class Net: pass\nraise OSError")).err


@pytest.mark.sweep
def test_why_no_step_was_recorded(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", "--steps", "5:", script(TRAIN))
    assert "no step was recorded: --steps begins at step 5, but the last step was 4" in ran.err
    ran = cli("run", "--max-seconds", "0", script(TRAIN))
    assert "no step was recorded in the 0 s of --max-seconds" in ran.err
    assert "no step was recorded" not in cli("run", "--steps", "4:", script(TRAIN)).err


@pytest.mark.parametrize(
    ("made", "options", "told"),
    [
        swept("torch.jit.script(torch.nn.Linear(2, 2))", (), False),
        swept("torch.nn.Linear(2, 2)", (), False),
        swept("torch.jit.script(torch.nn.Linear(2, 2))", ("--steps", "100:"), True),
        ("torch.nn.Linear(2, 2)", ("--steps", "100:"), True),
    ],
)
def test_why_no_forward_was_recorded(
    made: str, options: tuple[str, ...], told: bool, cli: Cli, script: Callable[[str], str]
) -> None:
    """TorchScript, no step of which can be recorded, has its own note."""
    text = f"import torch\nmodel = {made}\nwith torch.no_grad():\n    for _ in range(3): model(torch.ones(1, 2))"
    ran = cli("run", *options, script(text))
    assert ("--steps begins at step 100, but the last step was 2" in ran.err) == told
    assert ("no step was recorded" in ran.err) == told


@pytest.mark.sweep
def test_a_model_that_cannot_be_listed_is_left_out_and_said(cli: Cli, script: Callable[[str], str]) -> None:
    text = """
        import torch
        class Odd(torch.nn.Linear):
            def parameters(self, recurse=True):
                raise KeyError("mine")
        Odd(2, 2)(torch.ones(1, 2))
        """
    ran = cli("run", script(text))
    assert ran.code == 0 and "Odd is left out: PyTorch can't list its parameters (KeyError: 'mine')" in ran.err


@pytest.mark.sweep
def test_a_record_that_was_moved_is_left(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", script(f"{dedent(TRAIN)}\nimport os; os.rename('train.run.jsonl', 'mine.jsonl')"))
    assert ran.code == 0 and [lines("mine.jsonl")[i]["line"] for i in (0, -1)] == ["run", "end"]


@pytest.mark.sweep
def test_a_script_whose_modules_have_no_parameters(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", script("import torch\nfor _ in range(3): torch.nn.ReLU()(torch.ones(2))"))
    assert "no module with parameters was called" in ran.err and "ReLU (3)" in ran.err


def test_an_error_in_a_forward_shows_the_scripts_own_frames(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", script("import torch\nmodel = torch.nn.Linear(2, 3)\nmodel(torch.ones(1, 5))"))
    assert ran.code == 1 and "shapes cannot be multiplied" in ran.err and "hookcli/" not in ran.err
    end = lines("train.run.jsonl")[-1]
    assert end["exit_code"] == 1 and end["error"].startswith("RuntimeError: ") and end["models"][0]["forwards"] == 1


BAD = TRAIN.replace("loss.backward()", "(loss * float('nan' if step == 3 else 1)).backward()")


def test_the_first_bad_value_is_told_at_once(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", "--first-bad", "report", script(BAD))
    said = "first non-finite value: 1 NaN in the loss (Sequential, step 3)"
    assert ran.code == 0 and f"hookcli: {said}; " in ran.err and ran.out.startswith("loss")
    assert [line["what"] for line in lines("train.run.jsonl") if line["line"] == "non_finite"] == ["loss"]


@pytest.mark.sweep
def test_the_step_of_the_first_bad_value_is_the_one_that_is_shown(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", "--first-bad", "stop", script(BAD))
    assert "Sequential · step 3 · " in ran.err and "loss NaN" in ran.err and "step 0" not in ran.err
    record = read_record("train.run.jsonl")
    (recorded,) = record.steps(entry for entry in record.entries if entry.step == 3)
    (grads,) = [report for report in recorded.reports if report.probe == "grads"]
    reasons = {item.reason for item in grads.skipped if item.fqn.endswith("weight")}
    assert reasons == {"gradients are read as the optimizer steps, which did not happen"}


@pytest.mark.sweep
def test_a_script_that_is_stopped_at_the_first_bad_value(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", "--first-bad", "stop", script(BAD))
    assert (ran.code, ran.out) == (1, "") and "Traceback" not in ran.err
    assert "first non-finite value: 1 NaN in the loss (Sequential, step 3)" in ran.err
    assert lines("train.run.jsonl")[-1]["exit_code"] == 1


ERRORS = {
    ("gone.py",): "gone.py",
    (): "SCRIPT",
    ("-m", "no.such.module"): "no.such",
    ("--probe", "activation", "train.py"): "activations",
    ("--probe", "shapes", "train.py"): "needs a separate run (`hookcli shapes`)",
    ("--steps", "5", "train.py"): "--steps '5': give a range such as 0:1000",
    ("--steps", "9:2", "train.py"): "--steps '9:2'",
    ("--first-bad", "halt", "train.py"): "'halt'; choose from: report, stop",
    ("--every", "0", "train.py"): "--every",
    ("--max-seconds", "-1", "train.py"): "--max-seconds",
    ("--output", "no/such/folder.jsonl", "train.py"): "can't write no/such/folder.jsonl: No such file or directory",
    ("--output", "/dev/full", "train.py"): "can't write /dev/full: No space left on device",
}


@pytest.mark.parametrize("arguments", ERRORS)
def test_mistakes(arguments: tuple[str, ...], cli: Cli, script: Callable[[str], str]) -> None:
    script("print('it ran')")
    ran = cli("run", *arguments)
    assert (ran.code, ran.out) == (2, "") and ERRORS[arguments] in ran.err
    assert ran.err.startswith("hookcli: error: ") and len(ran.err.splitlines()) <= 3
    assert [path.name for path in Path.cwd().iterdir()] == ["train.py"]
