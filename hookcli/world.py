"""Which of the processes of a run this one is, as torchrun tells it in the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass


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
