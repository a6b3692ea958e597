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
from _bench_merge import report

from hookcli.engine.ranks.group import gather, joined
from hookcli.system.torchrun import world
from hookcli.table.measured_rows import pack
from hookcli.table.merged_ranks import merged


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
                    merged(dict(enumerate(parts)))
                    merging.append(time.perf_counter() - started)
            if parts:
                said = {"rows": rows, "bytes": len(pack(own)), "gather": median(gathering), "merge": median(merging)}
                print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(rows) for rows in sys.argv[2:]])
