"""A small training that gets interrupts, in a process of its own: they may come in any line of PyTorch's, too."""

from __future__ import annotations

import gc
import inspect
import random
import signal
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import torch
from observing import Seen, observing
from torch import nn

import hookcli
from hookcli.record.observe.observer import Observer
from hookcli.record.observe.recording_plan import RecordingPlan

OURS = str(Path(hookcli.__file__).parent)


class Loop:
    """A small training; each `step` is one of its steps, whatever became of the one before."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.ReLU(inplace=True), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        gc.freeze()

    def step(self) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        self.optimizer.zero_grad()
        scaler.scale(self.model(torch.ones(2, 4)).pow(2).mean()).backward()
        scaler.step(self.optimizer)
        with torch.no_grad():
            nn.Linear(4, 1)(torch.ones(2, 4))  # a model that dies
        gc.collect()  # and what recorded the step before


class Lines:
    """Numbers the lines of hookcli's, and of dictionaries with weak keys, that run in a `with` block.

    At line `stop` an interrupt comes; `place` is where that was.
    """

    def __init__(self, stop: int = -1) -> None:
        self.stop, self.place = stop, ""
        self.functions: dict[CodeType, list[int]] = {}
        self._count = 0

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _enter(self, frame: FrameType, event: str, about: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(OURS) and Path(file).name not in ("weak.py", "weakref.py", "_weakrefset.py"):
            return None
        return self._line(frame, event, about)

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        closed = event == "call" and frame.f_code.co_flags & inspect.CO_GENERATOR  # perhaps; then nothing of it runs
        if event in ("call", "line") and not closed:
            self.functions.setdefault(frame.f_code, []).append(self._count)
            self._count += 1
            if self._count - 1 == self.stop:
                self.place = (
                    f"{frame.f_code.co_qualname} ({event}, {Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
                )
                signal.raise_signal(signal.SIGINT)
        return self._line


def lost_in_our_functions(every: int) -> list[str]:
    """At its begin, where Python looks for signals, or at one of its lines; in one of so many functions."""
    loop, seen, chance = Loop(), Seen(), random.Random(0)
    observer, lost = Observer(RecordingPlan(every=1), seen).start(), []
    try:
        for _ in range(3):
            loop.step()
        with Lines() as all_lines:
            loop.step()
        for which, numbers in islice(enumerate(all_lines.functions.values()), 0, None, every):
            number = numbers[0] if which % 2 else chance.choice(numbers)
            try:
                with Lines(number) as lines:
                    loop.step()
            except KeyboardInterrupt:
                continue
            lost += [lines.place] if lines.place else []
    finally:
        observer.stop()
    assert not seen.errors
    return lost


def arrived_from_outside() -> tuple[int, int]:
    loop, chance = Loop(), random.Random(0)
    inside, arrived, sent = threading.Event(), threading.Event(), 0
    main, over = threading.main_thread().ident, threading.Event()
    assert main is not None

    def send() -> None:
        nonlocal sent
        while sent < 40:
            arrived.clear()
            inside.wait(60)
            time.sleep(chance.uniform(0, 0.004))
            sent += 1
            signal.pthread_kill(main, signal.SIGINT)
            if not arrived.wait(5):
                break
        over.set()

    sender, counted = threading.Thread(target=send), 0
    with observing() as seen:
        sender.start()
        while not over.is_set():
            try:
                inside.set()
                while not over.is_set():
                    loop.step()
            except KeyboardInterrupt:
                inside.clear()
                torch.set_grad_enabled(True)  # PyTorch's no_grad does not put it back where it is interrupted
                counted += 1
                arrived.set()
        sender.join()
    assert not seen.errors
    return counted, sent


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where the parent ignores it, so would this process
    print(lost_in_our_functions(int(sys.argv[2])) if sys.argv[1] == "ours" else arrived_from_outside())
