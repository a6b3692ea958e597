"""A recording that nobody stops: the end of the program is its end."""

from __future__ import annotations

import sys
from pathlib import Path

import forks

from hookcli.record.file.reading import read_record

PROGRAM = """
import sys
import hookcli, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
hookcli.watch(model, every=1, output=sys.argv[1]).start()
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
raise KeyError("lost")
"""


def test_a_recording_that_nobody_stops_ends_with_the_program(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    ran = forks.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1 and ran.stderr.endswith("KeyError: 'lost'\n")
    record = read_record(path)
    assert len(record.entries) == 3
    assert (record.end.exit_code, record.end.error) == (1, "KeyError: 'lost'")
