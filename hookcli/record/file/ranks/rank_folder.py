"""Finds the folder for the parts of ranks that no common parent has told its name.

Ranks that record with `hookcli.watch` agree on a name without talking to each other: the first one there creates the
folder, with a note in it which run it belongs to, in one step.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path

from hookcli.record.file.ranks.parts import RecordFiles
from hookcli.record.file.writer import RecordWriter
from hookcli.system.files import is_folder
from hookcli.system.torchrun import run_name

_NOTE = ".run"


def rank_writer(output: str | Path | None, stem: str, rank: int) -> RecordWriter:
    """Create the part of a rank: in the folder `output` (`run.jsonl` stands for `run/`), else in `STEM.run/`, numbered.

    Raises OSError.
    """
    if output is None:
        folder = rank_files(Path.cwd(), stem, rank, run_name()).folder
    else:
        path = Path(output).absolute()
        folder = path if path.suffix == ".run" or is_folder(path) else RecordFiles(path).folder
    folder.mkdir(exist_ok=True)
    return RecordWriter(folder / f"rank{rank}.jsonl")


def rank_files(parent: Path, stem: str, rank: int, run: str) -> RecordFiles:
    """The files `STEM.run/` of a run, or a numbered one if that is another run's. `run` is the same on all ranks.

    Raises OSError if no folder can be made.
    """
    for number in count(1):
        name = f"{stem}-{number}.run" if number > 1 else f"{stem}.run"
        files = RecordFiles(parent.absolute() / f"{name}.jsonl")
        if files.record.exists():
            continue
        _claim(files.folder, run)
        with suppress(OSError):
            taken = (files.folder / f"rank{rank}.jsonl").exists()  # by an earlier run that was called the same
            if (files.folder / _NOTE).read_text() == run and not taken:
                return files
    raise AssertionError


def _claim(folder: Path, run: str) -> None:
    """Create the folder with a note of its run, unless it exists. Raises OSError."""
    if folder.exists():
        return
    made = folder.with_name(f".hookcli-{os.urandom(8).hex()}")
    made.mkdir()
    try:
        (made / _NOTE).write_text(run)
        made.rename(folder)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not folder.exists():
            raise
