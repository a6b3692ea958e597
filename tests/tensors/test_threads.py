"""The library's own threads: right figures from any of them, in forked processes too, and asleep between them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from support import assert_stats, float64_stats
from torch import Tensor

from hookcli.tensors import library
from hookcli.tensors.stats import measure, resolve

pytestmark = pytest.mark.skipif(
    library.loaded is None and os.environ.get("HOOKCLI_TEST_NATIVE") != "required",
    reason="installed without a compiler",
)
LARGE = 700_001  # elements: more than the caller reads alone
TASKS = Path("/proc/self/task")
linux = pytest.mark.skipif(not TASKS.exists(), reason="the kernel tells it there alone")


def figures(x: Tensor) -> str:
    """All of them, and the histogram."""
    (found,) = resolve([measure(x, hist=True)])
    return repr((found.floats(), found.hist))


def tasks() -> dict[str, dict[str, str]]:
    """What the kernel says of each thread of this process."""
    return {
        task.name: dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        for task in TASKS.iterdir()
    }


@pytest.fixture(params=["PyTorch's", "own"])
def whose(request: pytest.FixtureRequest) -> Iterator[str]:
    """Four threads of PyTorch's, where the library can use them, or of the library's own."""
    assert library.loaded is not None
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    library.loaded.share_threads(request.param != "own")
    yield request.param
    library.loaded.share_threads()
    torch.set_num_threads(before)


only_own = pytest.mark.parametrize("whose", ["own"], indirect=True)


def alone(x: Tensor) -> str:
    """The figures that one thread finds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = figures(x)
    torch.set_num_threads(threads)
    return found


@pytest.mark.parametrize("kind", ["plain", "far from 0", "with NaN", "bfloat16"])
def test_figures_are_the_same_bits_however_many_threads_there_are(whose: str, kind: str) -> None:
    x = torch.randn(LARGE, generator=torch.Generator().manual_seed(0))
    if kind == "with NaN":
        x[5::1000] = torch.nan
    x = x + 1e4 if kind == "far from 0" else x.bfloat16() if kind == "bfloat16" else x
    found = {alone(x)}
    for count in (2, 3, 4):
        torch.set_num_threads(count)
        found.add(figures(x))
    assert len(found) == 1
    assert_stats(resolve([measure(x)])[0], float64_stats(x))


@pytest.mark.sweep
def test_many_callers_at_once_get_their_own_figures(whose: str) -> None:
    tensors = [torch.randn(LARGE) * n for n in range(1, 7)]
    expected = [alone(x) for x in tensors]
    with ThreadPoolExecutor(6) as callers:
        assert list(callers.map(figures, tensors * 4)) == expected * 4


def test_two_tensors_are_compared_in_threads(whose: str) -> None:
    assert library.loaded is not None
    a, b = torch.randn(2, LARGE)
    found = library.loaded.distance(a, b)
    torch.set_num_threads(1)
    assert found == library.loaded.distance(a, b) and found is not None
    assert found[0] == (a - b).abs().max().item()


@pytest.mark.sweep
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork there")
def test_a_forked_process_starts_threads_of_its_own(whose: str) -> None:
    """Neither its parent's threads nor OpenMP's are there, and who waits for them waits for ever."""
    x = torch.randn(LARGE)
    expected = figures(x)
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        before = len(tasks()) if TASKS.exists() else 0
        same = figures(x) == expected and figures(x) == expected
        os._exit(0 if same and (not TASKS.exists() or len(tasks()) == before + 3) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert figures(x) == expected


class Measured(torch.utils.data.Dataset[str]):
    """The figures that a worker finds, which has as many threads as it asks for."""

    def __init__(self, x: Tensor, threads: int) -> None:
        self.x, self.threads = x, threads

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> str:
        torch.set_num_threads(self.threads)
        return figures(self.x)


@pytest.mark.sweep
@only_own
@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
def test_workers_of_a_data_loader(whose: str) -> None:
    x = torch.randn(LARGE)
    loader = torch.utils.data.DataLoader(Measured(x, 3), num_workers=1, batch_size=None, multiprocessing_context="fork")
    assert list(loader) == [figures(x)] * 2


@only_own
@linux
def test_idle_threads_sleep_and_take_no_signal(whose: str) -> None:
    """A signal that one of them took would not end what the main thread waits for."""
    before = set(tasks())
    figures(torch.randn(LARGE))
    until = time.monotonic() + 60
    while True:
        found = tasks()
        asleep = {name: task for name, task in found.items() if int(task["SigBlk"], 16) & 1 << signal.SIGINT - 1}
        if {task["State"].split()[0] for task in asleep.values()} == {"S"}:
            break
        assert time.monotonic() < until
        time.sleep(0.02)
    assert len(asleep) >= 3 and len(set(found) - before) <= 3
    ran = {name: (TASKS / name / "schedstat").read_text() for name in asleep}
    figures(torch.randn(1000))  # the caller reads few elements alone
    time.sleep(0.02)
    assert ran == {name: (TASKS / name / "schedstat").read_text() for name in asleep}


@only_own
def test_an_interrupt_ends_a_loop_over_large_tensors(whose: str) -> None:
    x = torch.randn(LARGE)
    assert figures(x) == alone(x)
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            while True:
                figures(x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert figures(x) == alone(x)
