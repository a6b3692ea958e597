"""Joins the processes of a run into a group, watches them, gathers their reports, and leaves the group in any case.

PyTorch's collectives wait for every rank. So a rank that fails must tell the others, a rank that hangs must be noticed,
and people should see one line about it. The ranks exchange these messages through torchrun's key-value store instead of
collectives, which works even while a collective is stuck. Reports are gathered after the run, in one collective.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from hookcli.engine.ranks.watchdog import Watchdog
from hookcli.errors import HookcliError, OverdueError, ToldError, UsageError
from hookcli.system.torchrun import World
from hookcli.table import Report
from hookcli.table.measured_rows import Places, pack, unpack

# seconds by which collectives outlast the watchdog, whose message is better
_GRACE = 30.0
_START = 120.0  # seconds for the other processes to start, which import PyTorch, on a busy machine
_AGREE = 2.0  # seconds to wait for other ranks to fail with the same error
_COME = 20.0  # seconds to wait for other ranks to start
_LOST = 3.0  # seconds to wait for the launcher to end this process if all it knows is that another rank is gone
_END = 30.0  # seconds to wait for the launcher to end a process that has nothing to report
_RUNS = count()
_CONNECTION = re.compile(r"connection (closed|reset|refused)|broken pipe|socket", re.IGNORECASE)


class Group:
    """The processes of a run, seen from one of them. A stage of the run may take `timeout` seconds."""

    def __init__(self, world: World, store: Store, timeout: float) -> None:
        self.world = world
        self.store = store
        self.backend = ""
        self.patience = timedelta(seconds=timeout + _GRACE)
        self.watchdog = Watchdog(world, store.clone(), timeout)
        self.stage = self.watchdog.stage
        self._meetings = 0

    def connect(self, backend: str | None, device: torch.device) -> None:
        """Set up PyTorch's process group. Raises UsageError for a backend that can't serve the device."""
        on_gpu = device.type == "cuda"
        self.backend = backend or ("nccl" if on_gpu else "gloo")
        if self.backend == "nccl" and not (torch.cuda.is_available() and dist.is_nccl_available()):
            raise UsageError("--backend nccl: needs GPUs, but none are available; gloo works on the CPU")
        if self.backend == "nccl" and not on_gpu:
            advice = "give --device cuda, or --backend gloo"
            raise UsageError(f"--backend nccl: works with GPUs, not with {device}; {advice}")
        if on_gpu and (there := torch.cuda.device_count()) < self.world.local_size:
            needed = f"{self.world.local_size} processes need a GPU each"
            raise UsageError(f"--device {device}: {needed}, but there are {there}")
        self.watchdog.stage("waiting for the other processes to start", _START)
        dist.init_process_group(
            self.backend,
            store=PrefixStore("group", self.store),
            rank=self.world.rank,
            world_size=self.world.size,
            timeout=max(self.patience, timedelta(seconds=_START + _GRACE)),
        )
        self.stage("finding the model")

    def largest(self, value: int) -> int:
        """The largest of the ranks' values. Waits for all ranks, without a collective."""
        self._meetings += 1
        answer = f"largest/{self._meetings}"
        self.store.set(f"{answer}/{self.world.rank}", str(value))
        if self.world.rank == 0:
            keys = self._of_all(answer)
            self.store.wait(keys, self.patience)
            self.store.set(answer, str(max(int(text) for text in self.store.multi_get(keys))))
        self.store.wait([answer], self.patience)
        return int(self.store.get(answer))

    def tells(self, error: BaseException) -> bool:
        """True if this rank reports its failure, with its number unless all have the same; others wait for the end."""
        with suppress(dist.DistError):  # the store is gone, together with the launcher
            if _CONNECTION.search(str(error)):
                time.sleep(_LOST)
                here = dict(enumerate(text.decode().split() for text in self.store.multi_get(self._of_all("here"))))
                gone = (rank for rank, (host, pid) in here.items() if host == platform.node() and not _runs(int(pid)))
                if (rank := next(gone, None)) is not None:
                    error.args = (f"rank {rank} ended in the middle of the run with no error message",)
            self.store.set(f"failed/{self.world.rank}", str(error))
            if self.store.add("failures", 1) == 1:
                keys, began = self._of_all("failed"), time.monotonic()
                until = began + _AGREE
                while not self.store.check(keys):
                    now = time.monotonic()
                    if not self.store.check(self._of_all("here")):  # slower ranks have not started yet
                        until = min(now + _AGREE, began + _COME)
                    if now > until:
                        break
                    time.sleep(_AGREE / 20)
                if not self.store.check(keys) or len(set(self.store.multi_get(keys))) > 1:
                    error.args = (f"rank {self.world.rank} of {self.world.size}: {error}",)
                return True
            time.sleep(_END)
        return False

    def _of_all(self, key: str) -> list[str]:
        return [f"{key}/{rank}" for rank in range(self.world.size)]


@contextmanager
def joined(world: World, timeout: float) -> Iterator[Group]:
    """Be part of the group while the block runs; `connect` sets up its collectives.

    An error in the block becomes the group's: one rank raises it, with its number unless all ranks have it, and the
    others raise ToldError.
    """
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=max(timeout, _START))))
    name = f"hookcli {next(_RUNS)}"  # a process may take part in several runs; the store outlives them
    group = Group(world, PrefixStore(name, store), timeout)
    group.store.set(f"here/{world.rank}", f"{platform.node()} {os.getpid()}")
    try:
        with group.watchdog:
            yield group
        if dist.is_initialized():
            dist.destroy_process_group()
    except KeyboardInterrupt:
        if world.writes:
            raise
        raise ToldError("interrupted") from None
    except Exception as error:
        shared_error = HookcliError(f"{group.watchdog.doing}: {error}") if isinstance(error, OverdueError) else error
        if not group.tells(shared_error):
            raise ToldError(str(shared_error)) from error
        if isinstance(shared_error, HookcliError):
            shared_error.own = True
        if shared_error is error:
            raise
        raise shared_error from error


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


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
    return [unpack(part.cpu().numpy().data, known) for part in everyone]
