"""Measures ways to run something in turn, and compares them: for the sections of `scripts/bench`."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import NamedTuple

from _bench_table import Tables
from rich.console import Console

HOOKCLI = str(Path(sys.executable).with_name("hookcli"))
console = Console(width=None if sys.stdout.isatty() else 120)
scratch = tempfile.TemporaryDirectory(prefix="hookcli-bench-")
tables = Tables(console, Path(scratch.name) / "tables.jsonl")


class Sample(NamedTuple):
    """Wall-clock seconds, and the peak of resident memory in MiB where the run had a process to itself."""

    seconds: float
    peak: float = 0.0


def compare(
    title: str,
    rounds: int,
    runs: Mapping[str, Callable[[], Sample]],
    targets: Mapping[str, float] | None = None,
    measured: Sequence[str] = ("seconds",),
    warm_up: bool = True,
) -> None:
    """Warm up, run the rounds, print ratios to the first run. Targets are for the first of what is measured.

    Raises RuntimeError, before anything runs, for a table or rows that `TABLES` does not name.
    """
    tables.check(title, runs)
    names = list(runs)
    for name in names if warm_up else ():
        runs[name]()
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            gc.collect()  # nobody pays for another's garbage
            samples[name].append(runs[name]())
    units = {"seconds": "Seconds", "peak": "Peak MiB"}
    rows = []
    for name, own in samples.items():
        cells = [_figures(*([getattr(s, m) for s in some] for some in (own, samples[names[0]]))) for m in measured]
        rows.append((name, *(c for row in cells for c in row), *_judged(float(cells[0][1]), (targets or {}).get(name))))
    headings = [heading for m in measured for heading in (units[m], "Ratio", "in rounds")]
    tables.show(title, rounds, [*headings, "Target", ""], rows)


def _figures(own: Sequence[float], base: Sequence[float]) -> tuple[str, str, str]:
    paired = sorted(a / b for a, b in zip(own, base, strict=True))
    quarter = len(paired) // 4
    spread = f"{paired[quarter]:.2f}-{paired[-1 - quarter]:.2f}" if own != base else ""
    return f"{median(own):.3f}"[:5].rstrip("."), f"{median(own) / median(base):.3f}", spread


def _judged(ratio: float, target: float | None) -> tuple[str, str]:
    if target is None:
        return "", ""
    return f"{target:.2f}", "met" if ratio <= target else "over"


# Ways to run something.


def program(*argv: str) -> Sample:
    """A process from its start to its end."""
    started = time.perf_counter()
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return _waited(child.pid, started, " ".join(argv))


def apart(action: Callable[[], object]) -> Sample:
    """In a forked child, which prints what goes wrong."""
    started = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return _waited(pid, started, f"the child for {action}")


def _waited(pid: int, started: float, what: str) -> Sample:
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"exit code {os.waitstatus_to_exitcode(status)} from {what}")
    return Sample(time.perf_counter() - started, usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10))


def timed(action: Callable[[], object], before: Callable[[], object] | None = None) -> Sample:
    """In this process. `before` is not part of the time."""
    if before:
        before()
    started = time.perf_counter()
    action()
    return Sample(time.perf_counter() - started)


def installed(distribution: str) -> bool:
    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        console.print(f"{distribution} is not installed: left out\n")
        return False
