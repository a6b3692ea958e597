"""The section of `scripts/bench` for a GPU; it leaves itself out where there is none. It prints, and writes no page."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from _bench_measure import Sample, apart, compare, console
from _bench_table import GPU_BATCH, GPU_DTYPES, GPU_MODELS, GRADS_OF


def gpu(rounds: int) -> None:
    apart(partial(_gpu, rounds))


def _gpu(rounds: int) -> None:
    import torch

    if not torch.cuda.is_available():
        console.print("gpu: needs a CUDA device: left out\n")
        return
    console.print(f"{torch.cuda.get_device_name()}, {GPU_BATCH} images a batch")
    for name in GPU_MODELS:
        for dtype in GPU_DTYPES:
            _model(name, dtype, rounds)
            torch.cuda.empty_cache()


def _model(name: str, dtype: str, rounds: int) -> None:
    """Forward; forward and backward; a training step. The peak is of allocated memory."""
    import _bench_work as work
    import torch
    from _bench_run import ObservedStep

    from hookcli.record.observe.recording_plan import PROBES

    where = {"device": "cuda", "dtype": getattr(torch, dtype), "batch": GPU_BATCH}
    both, target = ("seconds", "peak"), {"hookcli activations": 1.15}
    model, x = work.build(name, **where)
    _without_a_wait(partial(work.probed, "activations", work.forward, model, x))
    runs = {
        "plain forward": partial(_timed, partial(work.forward, model, x)),
        "hookcli activations": partial(_timed, partial(work.probed, "activations", work.forward, model, x)),
        "hookcli activations --hist": partial(
            _timed, partial(work.probed, "activations", work.forward, model, x, hist=True)
        ),
    }
    compare(f"GPU: activations of {name}, {dtype}", rounds, runs, target, both)
    model, x = work.build(name, train=True, **where)
    clear = partial(model.zero_grad, set_to_none=True)
    runs = {"plain": partial(_timed, partial(work.backward, model, x), clear)} | {
        f"hookcli grads --of {of}": partial(
            _timed, partial(work.probed, "grads", work.backward, model, x, of=of), clear
        )
        for of in GRADS_OF
    }
    compare(f"GPU: gradients of {name}, {dtype}", rounds, runs, {"hookcli grads --of parameters": 1.15}, both)
    step = ObservedStep(name=name, **where)
    runs = {"plain": partial(_timed, step.step, step.plain)}
    for way, probes in {"not recorded": (), "recorded": PROBES}.items():
        runs[way] = partial(_timed, step.step, partial(step.watched, probes))
    compare(f"GPU: training step of {name}, {dtype}", rounds, runs, {"not recorded": 1.01}, both)
    step.plain()


def _without_a_wait(action: Callable[[], object]) -> None:
    """Warm up; then have PyTorch raise where a hook would wait for the device, until figures are read at the end."""
    from unittest.mock import patch

    import torch

    from hookcli.tensors import chunks

    def read(*given: object) -> object:
        torch.cuda.set_sync_debug_mode("default")
        return fetched(*given)

    action()
    fetched = chunks.fetched
    torch.cuda.set_sync_debug_mode("error")
    with patch.object(chunks, "fetched", read):
        action()


def _timed(action: Callable[[], object], before: Callable[[], object] | None = None) -> Sample:
    """Until the device has done its work. `before` is not part of the time."""
    import torch

    if before:
        before()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return Sample(time.perf_counter() - started, torch.cuda.max_memory_allocated() / 2**20)
