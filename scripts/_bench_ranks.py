"""What one rank does for `scripts/bench ranks`: gather and merge reports of so many rows, so often, under torchrun.

    torchrun ... scripts/_bench_ranks.py ROUNDS ROWS...

Rank 0 prints a line of JSON a size: the bytes that a rank sends, and the medians of the seconds to gather and to merge.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median

import torch

from hookcli.engine.ranks.gather import gather, pack
from hookcli.engine.ranks.group import joined
from hookcli.report import STATS_COLUMNS, Column, Report, Row, TensorStats, ranks
from hookcli.system.torchrun import world

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


def main(rounds: int, sizes: list[int]) -> None:
    with joined(world(), timeout=300) as group:
        group.connect("gloo", torch.device("cpu"))
        for rows in sizes:
            own = report(rows, group.world.rank)
            gathering, merging = [], []
            for _ in range(rounds):
                torch.distributed.barrier()
                started = time.perf_counter()
                parts = gather(own, group)
                gathering.append(time.perf_counter() - started)
                if parts:
                    started = time.perf_counter()
                    ranks.merged(dict(enumerate(parts)))
                    merging.append(time.perf_counter() - started)
            if parts:
                said = {"rows": rows, "bytes": len(pack(own)), "gather": median(gathering), "merge": median(merging)}
                print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(rows) for rows in sys.argv[2:]])
