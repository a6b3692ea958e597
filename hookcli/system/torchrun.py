"""Which of the processes of a run this one is, as torchrun tells it in the environment."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

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
        """Whether it is the one that writes reports and remarks."""
        return self.rank == 0


_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def world() -> World:
    """The place of this process; alone where torchrun did not start it (job schedulers set RANK, too), and where what
    the environment says can't be torchrun's (`leftover`)."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or leftover():
        return World()
    return World(*(int(os.environ[name]) for name in _NAMES))


def leftover() -> str | None:
    """What the environment says of torchrun that can't be so, in one line: left over from a shell or another job."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    given = [os.environ.get(name, "") for name in _NAMES]
    if all(text.isdecimal() and text.isascii() and len(text) < _DIGITS for text in given):
        rank, size, local_rank, local_size = map(int, given)
        if rank < size and local_rank < local_size <= size:
            return None
    said = " ".join(f"{name}={shortened(text, 20)!r}" for name, text in zip(_NAMES, given, strict=True) if text)
    return (
        f"TORCHELASTIC_RUN_ID is set, but {said or 'without RANK it'} can't be from torchrun: running as one process "
        "(unset TORCHELASTIC_RUN_ID to silence this)"
    )


LAUNCHER = "HOOKCLI_LAUNCHER"
"""The process id of hookcli's own launcher, in the environment of the processes that it starts."""
_LOOK = 0.2  # seconds
_DIGITS = 10  # more than any number of processes has


def end_with_launcher() -> None:
    """From now on, end this process as soon as the one that launched it is gone: nobody else would."""
    given = os.environ.get(LAUNCHER, "")
    launcher = int(given) if given.isdecimal() and len(given) < _DIGITS else os.getppid()
    threading.Thread(target=_outlive, args=(launcher,), name="hookcli-launcher", daemon=True).start()


def _outlive(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(_LOOK)
    os._exit(FAILED)
