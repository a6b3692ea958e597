"""The sections of `scripts/bench` that train, under `hookcli run` and `hookcli comm`; without torch, as the others."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import TypeVar

from _bench_measure import Sample, apart, compare, console, installed, timed
from _bench_table import BATCH, RULED, TINY, WHOLE, WHOLE_TINY

T = TypeVar("T")

_TINY_TARGETS = {"not recorded": 1.35}
_STEP_TARGETS = {"not recorded": 1.02, "recorded": 1.3}


def run(rounds: int) -> None:
    apart(partial(_run, rounds))
    apart(partial(_tiny_steps, rounds))
    apart(partial(_two, partial(_whole_run, min(rounds, 3)), Pipe()))
    if installed("wandb"):
        apart(partial(_wandb, rounds))
    _in_ranks(partial(_run_ranks, rounds))


def _run(rounds: int) -> None:
    from _bench_run import ObservedStep
    from _bench_work import keep_freed_memory

    from hookcli.record.observe.recording_plan import PROBES

    keep_freed_memory()
    observed = ObservedStep()
    runs = {"plain": partial(timed, observed.step, observed.plain)}
    for name, probes in {
        "not recorded": (),
        "recorded": PROBES,
        **{f"{probe} alone": (probe,) for probe in ("activations", "grads", "updates")},
    }.items():
        runs[name] = partial(timed, observed.step, partial(observed.watched, probes))

    runs["--live tensorboard"] = partial(timed, observed.step, partial(observed.exported, PROBES, "tensorboard"))
    title = f"A training step of resnet50, batch {BATCH}, under hookcli run"
    compare(title, rounds, runs, _STEP_TARGETS)
    ruled = partial(observed.watched, (), ["grad_norm > 5 * median(50)"])
    both = {name: runs[name] for name in ("plain", "not recorded")}
    compare(RULED, rounds, both | {"a rule on grad_norm": partial(timed, observed.step, ruled)})


def _tiny_steps(rounds: int) -> None:
    from _bench_run import TinySteps

    tiny = TinySteps()
    runs = {
        "plain": partial(timed, tiny.steps, tiny.plain),
        "not recorded": partial(timed, tiny.steps, tiny.observed),
    }
    compare(TINY, rounds, runs, _TINY_TARGETS)
    whole = {
        "plain": partial(_processor, tiny.training, tiny.plain),
        "hookcli run": partial(_processor, tiny.training, tiny.chosen),
    }
    compare(WHOLE_TINY, rounds, whole, {})  # recorded steps may take a second of so short a run
    ways = (tiny.observed, tiny.plain)
    pairs = [[_processor(tiny.steps, way).seconds for way in ways] for _ in range(rounds)]
    more = median(observed - plain for observed, plain in pairs)
    console.print(f"a step that is followed and not recorded costs {more / tiny.STEPS * 1e6:.0f} µs\n")


def _processor(action: Callable[[], object], before: Callable[[], object]) -> Sample:
    """The time of the processor."""
    before()
    began = time.process_time()
    action()
    return Sample(time.process_time() - began)


def _whole_run(rounds: int, number: int, turns: tuple[Connection, Connection]) -> None:
    from _bench_run import WholeRun
    from _bench_work import keep_freed_memory

    keep_freed_memory()
    whole = WholeRun(turns[number], observed=number == 1)
    if number:
        for _ in range(rounds):
            whole.observed()
        return
    plain, observed = zip(*(whole.plain() for _ in range(rounds)), strict=True)
    runs = {"plain": partial(next, map(Sample, plain)), "hookcli run": partial(next, map(Sample, observed))}
    compare(WHOLE, rounds, runs, {"hookcli run": 1.03}, warm_up=False)


def _wandb(rounds: int) -> None:
    from _bench_run import LoggedStep
    from _bench_work import keep_freed_memory

    keep_freed_memory()
    with LoggedStep() as logged:
        runs = {"plain": partial(timed, logged.step, logged.plain)}
        for name, what in {"gradients": "gradients", "gradients and parameters": "all"}.items():
            runs[f"histograms of {name}"] = partial(timed, logged.step, partial(logged.watched, what))
        compare(f"A training step of resnet50, batch {BATCH}, under wandb.watch", rounds, runs)


def _run_ranks(rounds: int, number: int, store: str) -> None:
    from _bench_run import ObservedStep, rank

    from hookcli.record.observe.recording_plan import PROBES

    with rank(store, number):
        observed = ObservedStep(ranks=True)
        runs = {"plain DDP": partial(timed, observed.step, observed.plain)}
        for name, probes in {"not recorded": (), "recorded": PROBES}.items():
            runs[name] = partial(timed, observed.step, partial(observed.watched, probes))
        title = f"A DDP step of resnet50 under hookcli run, 2 ranks of {BATCH} images, gloo"
        compare(title, rounds, runs, _STEP_TARGETS)


def comm(rounds: int) -> None:
    _in_ranks(partial(_comm, rounds))


def _comm(rounds: int, number: int, store: str) -> None:
    import _bench_run as work

    for hook in ("allreduce", "fp16"):
        with work.rank(store + hook, number):
            runs = {way: partial(_each, work.COMM_STEPS, action) for way, action in work.comm(hook).items()}
            title = f"A DDP step of resnet50 under {hook}, 2 ranks of {BATCH} images, gloo"
            compare(title, rounds, runs, {"hookcli comm": 1.1})


def _in_ranks(section: Callable[[int, str], None]) -> None:
    """Call the section, in two processes that do the same in turn, with its rank and a file for both; rank 0 prints."""
    with tempfile.TemporaryDirectory() as folder:
        apart(partial(_two, section, str(Path(folder) / "store")))


def _two(section: Callable[[int, T], None], shared: T) -> None:
    other = os.fork()  # before torch is imported
    try:
        console.quiet = other == 0
        section(0 if other else 1, shared)
    except Exception:
        traceback.print_exc()
        raise
    finally:
        if not other:
            os._exit(0)
        os.waitpid(other, 0)


def _each(steps: int, action: Callable[[], object]) -> Sample:
    """The mean of several steps."""
    return Sample(timed(action).seconds / steps)
