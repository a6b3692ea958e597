"""Gathers the ranks' reports on rank 0 after the run: one packed tensor per report, in one collective."""

from __future__ import annotations

import array
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from hookcli.engine.ranks.group import Group
from hookcli.report import STATS_KEYS, Report, Row, TensorStats
from hookcli.report.histogram import Histogram

_SIZES = struct.Struct("=qqq")  # bytes of the run's description, of the places and of the statistics
Places = Sequence[tuple[Mapping[str, Any], bool]]
"""For each row its values besides statistics, and whether it has statistics."""


def gather(report: Report, group: Group) -> list[Report]:
    """On rank 0 the reports of all ranks, in order; on other ranks none."""
    packed = pack(report)
    size = group.largest(len(packed))
    device = torch.device("cuda", torch.cuda.current_device()) if group.backend == "nccl" else torch.device("cpu")
    own = torch.frombuffer(bytearray(packed.ljust(size, b"\0")), dtype=torch.uint8).to(device)
    if group.world.rank != 0:
        dist.gather(own, dst=0)
        return []
    everyone = [torch.empty_like(own) for _ in range(group.world.size)]
    dist.gather(own, everyone, dst=0)
    known: dict[bytes, Places] = {}
    return [unpack(part.cpu().numpy().tobytes(), known) for part in everyone]


def pack(report: Report) -> bytes:
    """The report as bytes: JSON for the run, compressed JSON for the rows' places, and float64 for the statistics."""
    run = json.dumps(replace(report, rows=()).to_dict()).encode()
    places = [({k: v for k, v in row.flat().items() if k not in STATS_KEYS}, bool(row.stats)) for row in report.rows]
    text = zlib.compress(json.dumps(places, separators=(",", ":")).encode(), level=1)
    figures = array.array("d", (figure for row in report.rows if row.stats for figure in row.stats.floats()))
    return _SIZES.pack(len(run), len(text), len(figures) * figures.itemsize) + run + text + figures.tobytes()


def unpack(packed: bytes, known: dict[bytes, Places]) -> Report:
    """The inverse of `pack`; bytes after the report are ignored. `known` caches places by their bytes."""
    sizes = _SIZES.unpack_from(packed)
    start = _SIZES.size
    run, text, figures = (packed[start + sum(sizes[:i]) : start + sum(sizes[: i + 1])] for i in range(3))
    if text not in known:
        known[text] = json.loads(zlib.decompress(text))
    numbers = array.array("d", figures)
    width = len(STATS_KEYS)
    stats = (TensorStats.from_floats(numbers[at : at + width]) for at in range(0, len(numbers), width))
    rows = [_row(values, next(stats) if measured else None) for values, measured in known[text]]
    return replace(Report.from_dict(json.loads(run)), rows=rows)


def _row(values: Mapping[str, Any], stats: TensorStats | None) -> Row:
    if stats is None or "hist" not in values:
        return Row(values, stats)
    rest = {key: value for key, value in values.items() if key != "hist"}
    return Row(rest, replace(stats, hist=Histogram.from_dict(values["hist"])))
