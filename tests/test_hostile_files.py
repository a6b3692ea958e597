"""Files and pipes with names and kinds that nobody expects."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hostile import Cli
from records import RUN, save
from safetensors.torch import save_file

from hookcli.system.files import at_rest, replacing
from hookcli.table.files import read_reports, write_whole

# Files.


def test_no_file_in_a_folder_is_a_link_out_of_it(cli: Cli, net: Path) -> None:
    save_file({"a": torch.ones(2)}, net / "elsewhere.safetensors")
    index = {"weight_map": {"a": "part.safetensors"}}
    for folder in ("plain", "hub/snapshots/1"):
        Path(folder).mkdir(parents=True)
        Path(folder, "model.safetensors.index.json").write_text(json.dumps(index))
    Path("plain/part.safetensors").symlink_to("../elsewhere.safetensors")
    for name in ("plain", "plain/model.safetensors.index.json"):
        ran = cli("weights", name)
        assert ran.code == 2 and "can't be read (a link that leads out of" in ran.err, ran.err
    assert cli("weights", "plain/part.safetensors").code == 0  # which the user has named
    Path("hub/blobs").mkdir()
    shutil.copy("elsewhere.safetensors", "hub/blobs/0f")
    Path("hub/snapshots/1/part.safetensors").symlink_to("../../blobs/0f")
    assert cli("weights", "hub/snapshots/1").code == 0
    Path("train.run").mkdir()
    save(Path("other.run.jsonl"), RUN)
    Path("train.run/rank0.jsonl").symlink_to("../other.run.jsonl")
    for argv in (("show", "train.run"), ("report", "train.run", "-o", "x.html")):
        ran = cli(*argv)
        assert ran.code == 2 and "rank0.jsonl: can't be read as a record (a link that leads out of" in ran.err
    Path("link.run.jsonl").symlink_to("other.run.jsonl")
    assert cli("show", "link.run.jsonl").code == 0
    assert cli("activations", "net.py:Net", "-i", "2x3x4x4", "--dump", "dumped").code == 0
    assert cli("diff", "dumped", "dumped").code == 0
    for file in Path("dumped").glob("*.safetensors"):
        file.rename(Path("out-" + file.name))
        file.symlink_to(f"../out-{file.name}")
    ran = cli("diff", "dumped", "dumped")
    assert ran.code == 2 and "a link that leads out of dumped" in ran.err


@pytest.fixture
def unnameable(net: Path) -> Path:
    """A file whose name is not UTF-8, with a layer whose name is none, either."""
    file = net / os.fsdecode(b"n\xff.py")
    file.write_text(
        "from torch import nn\ndef f():\n    m = nn.Sequential()\n    m.add_module('a\\ud800', nn.Linear(2, 2))\n"
        "    return m\n"
    )
    return file


def test_a_record_whose_line_has_no_end(cli: Cli, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookcli.record.file.parsing.LARGEST", 2**16)
    save(Path("a.run.jsonl"), RUN)
    with Path("a.run.jsonl").open("ab") as file:
        file.truncate(2**30)
    for argv in (("show", "a.run.jsonl"), ("report", "a.run.jsonl", "-o", "x.html")):
        ran = cli(*argv)
        assert ran.code == 2 and "a.run.jsonl: can't be read as a record (larger than" in ran.err


@pytest.mark.parametrize("suffix", ["json", "csv", "md", "txt"])
def test_names_that_are_not_utf8(cli: Cli, unnameable: Path, net: Path, suffix: str) -> None:
    ran = cli("shapes", f"{unnameable.name}:f", "-i", "1x2", "-o", f"{os.fsdecode(bytes([200]))}.{suffix}")
    assert ran.code == 0 and "Traceback" not in ran.err, ran.err
    [written] = net.glob(f"*.{suffix}")
    assert "a\\ud800" in written.read_text("utf-8")
    if suffix == "json":
        assert read_reports(str(written))[0].rows[-1].fqn == "a\ud800"
    assert not list(net.glob(".*"))


def test_a_baseline_of_such_a_model(cli: Cli, unnameable: Path, net: Path) -> None:
    what = ("check", f"{unnameable.name}:f", "-i", "2x2")
    assert cli(*what, "--save", "b.json", "-f", "sarif", "--report", "r.xml").code == 0
    assert cli(*what, "--against", "b.json").code == 0


def test_a_file_keeps_its_mode_and_a_link_stays_one(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    file = Path("there/secret.json")
    file.write_text("{}")
    file.chmod(0o600)
    Path("link.json").symlink_to(file)
    Path("new.json").symlink_to("there/new.json")
    before = os.umask(0o027)
    try:
        for name in ("link.json", "new.json"):
            assert cli("models", "resnet18", "-o", name).code == 0
            assert Path(name).is_symlink() and read_reports(name)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path("there/new.json").stat().st_mode) == 0o640
    assert sorted(p.name for p in Path("there").iterdir()) == ["new.json", "secret.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, UnicodeError, OSError])
def test_nothing_is_left_of_a_file_that_was_not_written(tmp_path: Path, error: type[BaseException]) -> None:
    file = tmp_path / "x.json"
    file.write_text("as it was")
    with pytest.raises(error), replacing(file) as scratch:
        scratch.write_text("half")
        raise error
    assert [p.read_text() for p in tmp_path.iterdir()] == ["as it was"]


def test_a_named_pipe_gets_the_text(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "text\ud800")
    assert os.read(reader, 100) == b"text\\ud800" and pipe.is_fifo()
    os.close(reader)


def test_names_as_long_as_can_be_and_longer(cli: Cli, net: Path) -> None:
    longest, longer = "a" * 250 + ".json", "a" * 300
    assert cli("models", "resnet18", "-o", longest).code == 0 and Path(longest).stat().st_size
    for argv in (
        ("models", "-o", f"{longer}.json"), ("shapes", f"{longer}.py:f"), ("shapes", longer), ("show", longer),
        ("show", longer, "--follow"), ("diff", longer, longer), ("run", longer), ("package", "--load", longer),
        ("check", "--config", longer), ("shapes", "net.py:Net", "--weights", f"{longer}.pt", "-i", "1x3x4x4"),
        ("check", "--save", longer), ("check", "net.py:Net", "-i", "2x3x4x4", "--against", longer),
        ("shapes", f"{longer}:f"), ("diff", "resnet18", f"net.py:Net --path {longer}"),
    ):  # fmt: skip
        ran = cli(*argv)
        assert ran.code == 2 and "Traceback" not in ran.err and len(ran.err.splitlines()) == 1, (argv, ran.err)


@pytest.mark.parametrize(
    "argv",
    [
        ("--input", "DIGITS"), ("--depth", "DIGITS"), ("--batch-size", "DIGITS"), ("--seed", "DIGITS"),
        ("--input", "1x3x4x4:DIGITS"), ("--arg", "width=DIGITS"), ("--nproc", "2", "--ranks", "DIGITS"),
    ],
)  # fmt: skip
def test_numbers_of_5000_digits(cli: Cli, net: Path, argv: tuple[str, ...]) -> None:
    probe = "activations" if "--ranks" in argv else "shapes"
    ran = cli(probe, "net.py:Net", "-i", "1x3x4x4", *(word.replace("DIGITS", "9" * 5000) for word in argv))
    assert ran.code == 2 and "Traceback" not in ran.err and len(ran.err.splitlines()) <= 2, ran.err


def test_more_numbers_of_5000_digits(cli: Cli, net: Path) -> None:
    for argv in (("check", "--expect-output", "1xDIGITS"), ("run", "--steps", "DIGITS:", "x.py")):
        ran = cli(*(word.replace("DIGITS", "9" * 5000) for word in argv))
        assert ran.code == 2 and "Traceback" not in ran.err and len(ran.err) < 1000, ran.err


# Pipes to read from.


def piped(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of bash in which `hookcli` is this one."""
    return subprocess.run(
        ["bash", "-c", command.replace("hookcli", f"{sys.executable} -m hookcli")],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_show_of_a_pipe(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "r.run.jsonl", RUN)
    assert cli("models", "resnet18", "-o", "saved.json").code == 0
    whole = {name: cli("show", name, "-f", "json").out for name in ("r.run.jsonl", "saved.json")}
    commands = ("hookcli show -f json <(cat {})", "cat {} | hookcli show /dev/stdin -f json")
    for (name, expected), command in zip(whole.items(), commands, strict=True):
        ran = piped(command.format(name), tmp_path)
        assert ran.returncode == 0, (command, ran)
        assert json.loads(re.sub(r"/dev/\w+(/\d+)?", name, ran.stdout)) == json.loads(expected), (command, ran)
    ran = piped("hookcli show --follow <(cat r.run.jsonl)", tmp_path)
    assert ran.returncode == 2 and "is a pipe" in ran.stderr and len(ran.stderr.splitlines()) == 1
    ran = piped("hookcli show <(echo nonsense)", tmp_path)
    assert ran.returncode == 2 and "/dev/fd/" in ran.stderr and len(ran.stderr.splitlines()) == 1


def test_a_copy_of_a_pipe_is_gone_afterwards(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"text")
    os.close(writer)
    with at_rest(Path(f"/dev/fd/{reader}")) as copy:
        assert copy.read_text() == copy.read_text() == "text"
    assert not copy.parent.exists()
    os.close(reader)
    file = tmp_path / "x"
    with at_rest(file) as path:
        assert path == file


@pytest.mark.parametrize("command", ["show", "report", "weights", "diff x.json", "diff x.safetensors"])
def test_what_cannot_be_read_is_told_in_a_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A pipe that no program writes to, and a file whose beginning is not a memory of the process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hookcli.system.files._PATIENCE", 0.1)
    os.mkfifo("pipe")
    save_file({"a": torch.ones(2)}, "x.safetensors")
    assert cli("models", "resnet18", "-o", "x.json").code == 0
    for name in ("pipe", *(["/proc/self/mem"] if Path("/proc/self/mem").exists() else [])):
        ran = cli(*command.split(), name)
        assert ran.code == 2 and len(ran.err.splitlines()) == 1 and "bug" not in ran.err, (name, ran.err)


def test_stdout_by_its_name_is_stdout(cli: Cli) -> None:
    for name in ("/dev/stdout", "/dev/fd/1"):
        ran = cli("models", "resnet18", "-f", "csv", "-o", name)
        assert ran.code == 0 and ran.out.startswith("name,kind") and ran.err == ""
