"""Reads this process's rank from torchrun's environment variables."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from hookcli.errors import FAILED, shortened


@dataclass(frozen=True, slots=True)
class World:
    """This process is `rank` of `size`; on its machine `local_rank` of `local_size`."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def writes(self) -> bool:
        """True if this process writes reports and remarks."""
        return self.rank == 0


_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def world() -> World:
    """Return this process's rank and the number of processes.

    A single process unless torchrun started it (job schedulers set RANK, too) and its variables are valid (`leftover`).
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or leftover():
        return World()
    return World(*(int(os.environ[name]) for name in _NAMES))


def leftover() -> str | None:
    """Return a remark on torchrun variables that can't be right, such as leftovers of a shell or another job."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    texts = {name: os.environ.get(name, "") for name in _NAMES}
    if all(text.isdecimal() and text.isascii() and len(text) < _DIGITS for text in texts.values()):
        rank, size, local_rank, local_size = map(int, texts.values())
        if rank < size and local_rank < local_size <= size:
            return None
    settings = " ".join(f"{name}={shortened(text, 20)!r}" for name, text in texts.items() if text)
    return (
        f"TORCHELASTIC_RUN_ID is set, but {settings or 'without RANK it'} can't be from torchrun: "
        "running as one process (unset TORCHELASTIC_RUN_ID to silence this)"
    )


def joined_world() -> World:
    """Return this process's rank as torch.distributed knows it once it is initialized, else as torchrun says."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return World(distributed.get_rank(), distributed.get_world_size())
    return world()


def run_name() -> str:
    """Return text that is the same for all processes of a run, and as a rule another for another run.

    Launchers on one machine may share a port: the folder of logs, or else the launcher's process id, tells them apart.
    """
    by_launchers = (
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
        *("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    )
    parts = [f"{name}={os.environ[name]}" for name in by_launchers if name in os.environ]
    here = world()
    logs = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parents  # LOGS/RANK/error.json
    if 1 < here.size == here.local_size:
        parts.append(f"launcher={logs[1] if len(logs) > 1 else os.getppid()}")
    return " ".join(parts)


LAUNCHER = "HOOKCLI_LAUNCHER"
"""The process id of hookcli's own launcher, in the environment of the processes that it starts."""
_LOOK = 0.2  # seconds
_DIGITS = 10  # more than any number of processes has


def end_with_launcher() -> None:
    """End this process as soon as its launcher is gone; nothing else would end it."""
    text = os.environ.get(LAUNCHER, "")
    launcher = int(text) if text.isdecimal() and len(text) < _DIGITS else os.getppid()

    def wait_for_its_end() -> None:
        while os.getppid() == launcher:
            time.sleep(_LOOK)
        os._exit(FAILED)

    threading.Thread(target=wait_for_its_end, name="hookcli-launcher", daemon=True).start()
