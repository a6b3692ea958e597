"""Ranks for tests: processes on this machine that run a function together, in a process group of their own each time.

    def job(factor): return factor * dist.get_rank()      # in a module that can be imported: not in the test's
    assert run_ranks(2, job, 10) == [0, 10]

The processes are kept for the next job, since importing DDP takes seconds. A job that takes too long, or a
rank that dies, ends them all, and the next job has new ones.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, current_process
from pathlib import Path
from traceback import format_exc
from typing import Any

import forks

TIMEOUT = 90.0
_pools: dict[int, list[tuple[Any, connection.Connection]]] = {}


@dataclass(frozen=True)
class Raised:
    """What a rank's job raised, with its traceback."""

    kind: str
    message: str
    trace: str
    reports: tuple[Any, ...] = ()


class RanksError(Exception):
    """Ranks that raised; or that died or took too long, all of which are ended."""


def run_ranks(
    size: int, job: Callable[..., Any], *args: Any, timeout: float = TIMEOUT, may_raise: bool = False, **kwargs: Any
) -> list[Any]:
    """What `job` returned on each rank. Where it `may_raise`, that can be `Raised`; else it is this test's failure.

    The processes have started before the time begins.
    """
    if any(process.poll() is not None for process, _ in _pools.get(size, ())):  # after its last answer
        stop_ranks(size)
    pool = _pools.get(size) or _start(size)
    found: list[Any] = []
    rank = 0
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        try:
            for rank, (_, pipe) in enumerate(pool):  # noqa: B007 - which the error names
                pipe.send((job, args, kwargs, store, timeout))
            sentinels = [process.sentinel for process, _ in pool]
            for rank, (_, pipe) in enumerate(pool):
                ready = connection.wait([pipe, *sentinels], timeout)
                if pipe not in ready:  # this rank may wait for another, which has died
                    rank = sentinels.index(ready[0]) if ready else rank
                    raise RanksError(f"rank {rank} {'died' if ready else f'took more than {timeout:.0f} s'}")
                found.append(pipe.recv())
        except BaseException as error:  # an answer that nobody has read would be the next job's
            stop_ranks(size)
            if isinstance(error, (EOFError, ConnectionError)):
                raise RanksError(f"rank {rank} died") from None
            raise
    traces = [f"rank {rank}: {answer.trace}" for rank, answer in enumerate(found) if isinstance(answer, Raised)]
    if traces and not may_raise:
        raise RanksError("\n".join(traces))
    return found


def _start(size: int) -> list[tuple[Any, connection.Connection]]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pool = _pools[size] = []
    for rank in range(size):
        here, there = connection.Pipe()
        code = f"import ranks; ranks.serve({there.fileno()}, {rank}, {size})"
        process = forks.Popen([sys.executable, "-c", code], env=environment, pass_fds=[there.fileno()], kept=True)
        there.close()
        here.send_bytes(current_process().authkey)  # with which tensors are handed over
        pool.append((process, here))
    for rank, (process, pipe) in enumerate(pool):
        try:
            if pipe not in connection.wait([pipe, process.sentinel], TIMEOUT):
                raise EOFError
            pipe.recv()
        except EOFError:
            stop_ranks(size)
            raise RanksError(f"rank {rank} did not start") from None
    atexit.register(stop_ranks, size)
    return pool


def stop_all_ranks() -> None:
    """End the processes of every size."""
    for size in [*_pools]:
        stop_ranks(size)


def stop_ranks(size: int) -> None:
    """End the processes, whatever they are doing."""
    for process, pipe in _pools.pop(size, []):
        pipe.close()
        process.kill()
        process.wait()


def serve(number: int, rank: int, size: int) -> None:
    """In a rank: do the jobs that come through the file of this number."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    pipe = connection.Connection(number)
    current_process().authkey = pipe.recv_bytes()
    pipe.send("started")
    while True:
        try:
            job, args, kwargs, store, timeout = pipe.recv()
        except EOFError:
            return
        shared = dist.FileStore(store, size)
        dist.init_process_group("gloo", store=shared, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
        try:
            answer = job(*args, **kwargs)
        except Exception as error:
            answer = Raised(type(error).__name__, str(error), format_exc(), getattr(error, "reports", ()))
        pipe.send(answer)
        dist.destroy_process_group()


def process_id() -> int:
    """In a rank: the id of its process, once all ranks have found each other."""
    import torch.distributed as dist

    dist.barrier()
    return os.getpid()


def second_dies() -> None:
    """In a rank: wait for the second one, which dies."""
    import torch.distributed as dist

    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()
