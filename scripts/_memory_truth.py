"""Peaks of memory that PyTorch's profiler measures on the CPU allocator, kept in a file so that none is measured twice.

A step is a usual loop's: gradients set to None, forward, loss, backward, optimizer. AdamW's second step is
measured, whose state exists before it; plain SGD has no state. Each model runs in a fork of one process that has
imported torch, with one thread.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from _sweep_fork import in_a_fork

PEAKS = Path(__file__).with_name("memory_peaks.json")
PHASES = ("forward", "backward", "step")


def measured_peaks(specs: Iterable[tuple[str, str]], tell: Callable[[str], None], timeout: float) -> dict[str, Any]:
    """What was measured of these models, given as (name, input): by name and optimizer the bytes at the start of the
    step, at the peak of each phase, and the operators that ran at the peak.

    What the file has of this version of PyTorch is not measured again, unless it is an error.
    """
    import torch
    import torchvision

    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    kept = json.loads(PEAKS.read_text()) if PEAKS.exists() else {}
    models: dict[str, Any] = kept["models"] if kept.get("versions") == versions else {}
    for name, given in specs:
        known = models.get(name)
        if known and known["input"] == given and "error" not in known:
            continue
        started = time.perf_counter()
        models[name] = {"input": given, **in_a_fork(partial(_measure, name, given), timeout)}
        kept = {"versions": versions, "models": dict(sorted(models.items()))}
        PEAKS.write_text(json.dumps(kept, indent=1) + "\n")
        tell(f"{name} {given}: {models[name].get('error', 'measured')} in {time.perf_counter() - started:.0f} s")
    return models


def _measure(name: str, given: str) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from hookcli.engine.prepare import prepare_run
    from hookcli.engine.setting import Setting
    from hookcli.engine.step import Step
    from hookcli.sources.finding import find_recipe
    from hookcli.sources.inputs import parse_input

    torch.set_num_threads(1)
    setting = Setting(inputs=tuple(map(parse_input, given.split(","))), train=True, targets=True)

    def step(optimizer: torch.optim.Optimizer, prefix: str) -> None:
        optimizer.zero_grad(set_to_none=True)
        with record_function(f"{prefix} forward"):
            loss = run.step.loss(run.model(*run.inputs))
        with record_function(f"{prefix} backward"):
            loss.backward()
        with record_function(f"{prefix} step"):
            optimizer.step()

    # From before the model is built: the profiler counts no memory that is older than itself.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        run = prepare_run(find_recipe(name), setting, Step(backward=True))
        step(torch.optim.SGD(run.model.parameters(), lr=1e-6), "sgd")
        adamw = torch.optim.AdamW(run.model.parameters(), lr=1e-6)
        step(adamw, "first")
        gc.collect()
        step(adamw, "adamw")
    return {prefix: _peaks(profiler, prefix) for prefix in ("sgd", "adamw")}


def _peaks(profiler: Any, prefix: str) -> dict[str, Any]:
    """The bytes in use at the beginning of a step and at the peak of each phase, and the operators at the highest."""
    events = profiler.profiler.kineto_results.events()
    ends = {e.name(): e.end_ns() for e in events if e.name().startswith(prefix + " ")}
    begin = next(e.start_ns() for e in events if e.name() == f"{prefix} forward")
    turns = [begin, *(ends[f"{prefix} {phase}"] for phase in PHASES)]
    used, when, bytes_at = 0, 0, [0] * 5  # before the step, its phases, after it
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now = sum(event.start_ns() > turn for turn in turns)
        before, used = used, used + event.nbytes()
        if 0 < now < 4 and max(before, used) > max(bytes_at[1:4]):
            when = event.start_ns()
        bytes_at[now] = max(bytes_at[now], before, used) if now else used
    for later in range(1, 4):  # a phase that allocates nothing
        bytes_at[later] = bytes_at[later] or bytes_at[later - 1]
    ops: Sequence[Any] = [e for e in events if e.name() != "[memory]" and e.start_ns() <= when <= e.end_ns()]
    named = [e.name() for e in sorted(ops, key=lambda e: e.start_ns())][-4:]
    start, *peaks = bytes_at[:4]
    return {"start": start, **dict(zip(PHASES, peaks, strict=True)), "peak": max(peaks), "operators": named}
