"""Finds the folder for the parts of ranks that no common parent has told its name.

Ranks that record with `hookcli.watch` agree on a name without talking to each other: the first one there creates the
folder, with a note in it which launch it belongs to.
"""

from __future__ import annotations

import os
from pathlib import Path

from hookcli.record.file.ranks.parts import RecordFiles
from hookcli.record.file.writer import RecordWriter
from hookcli.system.files import is_folder
from hookcli.system.torchrun import run_name


def rank_writer(output: str | Path | None, stem: str, rank: int, group: str) -> RecordWriter:
    """Create the part of a rank: in the folder `output` (`run.jsonl` stands for `run/`), else in `STEM.run/`, numbered.

    `group` is the name of its process group, if known. Raises OSError.
    """
    if output is None:
        launch = f"{run_name()} {group}".strip() or f"launcher={os.getppid()}"  # of processes that nothing tells apart
        folder = rank_files(Path.cwd(), stem, rank, launch).folder
    else:
        path = Path(output).absolute()
        folder = path if path.suffix == ".run" or is_folder(path) else RecordFiles(path).folder
    folder.mkdir(exist_ok=True)
    return RecordWriter(folder / f"rank{rank}.jsonl")


def rank_files(parent: Path, stem: str, rank: int, launch: str) -> RecordFiles:
    """The files `STEM.run/` of a launch, or numbered ones if another has these, or an earlier one of the same name.

    Raises OSError if no folder can be made.
    """
    found = RecordFiles(parent.absolute() / f"{stem}.run.jsonl", launch).claimed()
    return next(files for files in found if not (files.folder / f"rank{rank}.jsonl").exists())
