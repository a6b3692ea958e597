"""Trainings with one fault each, and healthy ones, under `hookcli run`: is the first line the truth?

    scripts/sweep learn                      trainings with a fault, one without; and those after public recipes
    scripts/sweep learn same gan             these
    scripts/sweep learn --markdown           and write their rows into docs/accuracy.md
    scripts/sweep learn --check              each under `run --check`

Each is its own program, in scripts/trainings. The first line on a fault must name it (the words are in
`faulty.FAULTS`), and on a healthy one there must be none before the line on the run itself. Exits 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "scripts" / "trainings"
PAGE = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- scripts/sweep learn --markdown -->\n", "<!-- end of learn -->"
HEAD = ("", "| Training | Fault | Right | The first line, without the model's name |", "| :--- | :--- | :---: | :--- |")


class Outcome(NamedTuple):
    """What the first line said of a training; `wanted`: the words that it should have, "" for no such line."""

    name: str
    wanted: str
    said: str

    @property
    def right(self) -> bool:
        return self.wanted in self.said if self.wanted else not self.said

    def row(self) -> str:
        """A row of the table."""
        fault = "yes" if self.wanted else "none"
        return f"| {self.name} | {fault} | {'yes' if self.right else '**no**'} | {self.said or '(none)'} |"


def first_line(script: Path, name: str, options: Sequence[str]) -> str:
    """The first line that hookcli says of a training, without the model's name; "" if it is that on the run itself."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hookcli", "run", *options, "-o", f"{folder}/a.run.jsonl", str(script), name]
        ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    lines = [line.removeprefix("hookcli: ") for line in ran.stderr.splitlines() if line.startswith("hookcli: ")]
    about = re.compile(rf"{re.escape(script.name)}: [\d,]+ (step|forward)")
    if not any(map(about.match, lines)):
        return f"it failed: {ran.stderr.strip().splitlines()[-1:]}"
    live = ("recording in ", "the loss is ")  # said while the program runs
    said = next(line for line in lines if not line.startswith(live))
    return "" if about.match(said) else said.partition(": ")[2]


def outcomes(names: Sequence[str], options: Sequence[str]) -> Iterator[Outcome]:
    """The outcomes as they come."""
    sys.path.insert(0, str(FOLDER))
    wanted = {
        "faulty": {name: words for name, (_, words) in import_module("faulty").FAULTS.items()},
        "healthy": dict.fromkeys(import_module("healthy").TRAININGS, ""),
    }
    tried = import_module("faulty").TRIED
    for script, trainings in wanted.items():
        for name, words in trainings.items():
            if not names or name in names:
                asked = [*options, "--trial"] if name in tried else options
                yield Outcome(name, words, first_line(FOLDER / f"{script}.py", name, asked))


def told(outcomes: Iterable[tuple[bool, bool]]) -> str:
    """How many are right, in words; of each, whether it has a fault, and whether the first line was right."""
    pairs = [*outcomes]
    of_faults, healthy = ([right for fault, right in pairs if fault is wanted] for wanted in (True, False))
    named = f"The first line names the fault in {sum(of_faults)} of {len(of_faults)}"
    return f"{named}, and says nothing of {sum(healthy)} of {len(healthy)} healthy trainings."


def write(found: Sequence[Outcome]) -> None:
    """Put these rows into the table of the page, in place of the rows of the same trainings."""
    before, rest = PAGE.read_text().split(BEGIN)
    table, after = rest.split(END)
    rows = {line.split(" | ")[0].strip("| "): line for line in table.splitlines() if line.startswith("| ")}
    rows |= {one.name: one.row() for one in found}
    lines = [row for name, row in rows.items() if name not in ("Training", ":---")]
    PAGE.write_text(before + BEGIN + "\n".join(["", told(map(in_row, lines)), *HEAD, *lines, ""]) + END + after)


def in_row(row: str) -> tuple[bool, bool]:
    """Return two truths about a row of the table: it has a fault, and its first line was right."""
    _, fault, right, *_ = row.split(" | ")
    return fault == "yes", right == "yes"


def main(arguments: Sequence[str]) -> int:
    """Run the trainings and tell what was said."""
    parser = argparse.ArgumentParser("scripts/sweep learn", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--markdown", action="store_true", help="write the rows into docs/accuracy.md")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    found = []
    for one in outcomes(options.names, ["--check"] if options.check else []):
        found.append(one)
        print(one.row(), flush=True)
        if options.markdown:
            write([one])
    print(told((bool(one.wanted), one.right) for one in found))
    return int(not all(one.right for one in found))
