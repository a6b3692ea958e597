"""Which of the processes of a run this one is, as torchrun tells it in the environment."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

from hookcli.errors import FAILED


@dataclass(frozen=True, slots=True)
class World:
    """This process is `rank` of `size`; on its machine `local_rank` of `local_size`."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def writes(self) -> bool:
        """Whether it is the one that writes reports and remarks."""
        return self.rank == 0


def world() -> World:
    """The place of this process; alone where torchrun did not start it (job schedulers set RANK, too)."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return World()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return World(*(int(os.environ[name]) for name in names))


LAUNCHER = "HOOKCLI_LAUNCHER"
"""The process id of hookcli's own launcher, in the environment of the processes that it starts."""
_LOOK = 0.2  # seconds


def end_with_launcher() -> None:
    """From now on, end this process as soon as the one that launched it is gone: nobody else would."""
    launcher = int(os.environ.get(LAUNCHER, os.getppid()))
    threading.Thread(target=_outlive, args=(launcher,), name="hookcli-launcher", daemon=True).start()


def _outlive(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(_LOOK)
    os._exit(FAILED)
