"""Merges the reports of so many ranks by so many rows for `scripts/bench ranks`, in a process without torch.

    scripts/_bench_merge.py RANKS ROWS

Prints a line of JSON: the seconds to read the reports as they arrive and to merge them, and the peak of resident memory
in MiB, which contains the bytes that arrived.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from hookcli.table import STATS_COLUMNS, Column, Report, Row, TensorStats
from hookcli.table.measured_rows import Places, pack, unpack
from hookcli.table.merged_ranks import merged

COLUMNS = (*(Column(name, name) for name in ("fqn", "type", "call", "index", "path", "shape", "dtype")), *STATS_COLUMNS)


def report(rows: int, rank: int) -> Report:
    """As `hookcli activations` makes it of a model with so many modules."""
    found = []
    for index in range(rows):
        fqn = f"blocks.{index // 8}.attention.{index % 8}"
        values = {"fqn": fqn, "type": "Linear", "call": 0, "index": index, "path": ""}
        stats = TensorStats(4096, 0.1 * rank, 1.0 + index, -3.0, 3.0, 64.0, zeros=index % 7)
        found.append(Row(values | {"shape": [4, 1024], "dtype": "float32"}, stats))
    return Report("activations", "a transformer", COLUMNS, found, {"seconds": 1.0, "complete": True}, {"rows": rows})


def main(ranks: int, rows: int) -> None:
    arrived = [pack(report(rows, rank)) for rank in range(ranks)]
    known: dict[bytes, Places] = {}
    started = time.perf_counter()
    found = merged({rank: unpack(packed, known) for rank, packed in enumerate(arrived)})
    seconds = time.perf_counter() - started
    assert found.totals == {"rows": rows}
    assert found.rows[0]["numel"] == 4096 * ranks
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    print(json.dumps({"ranks": ranks, "rows": rows, "seconds": seconds, "peak": peak}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
