"""What an event file holds by now, and waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def losses(folder: str | Path) -> list[tuple[int, float]]:
    if not list(Path(folder).glob("*tfevents*")):
        return []
    events = EventAccumulator(str(folder)).Reload()
    found = events.Scalars("(model)/loss") if "(model)/loss" in events.Tags()["scalars"] else []
    return [(event.step, round(event.value, 5)) for event in found]


def until(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.05)
