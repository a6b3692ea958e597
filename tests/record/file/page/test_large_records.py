"""A record of 500 modules by 1,000 steps makes a page of at most 10 MB."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from records import activation, gradient, update

from hookcli.record.file.page.track import Track
from hookcli.record.file.record_lines import RecordedStep
from hookcli.reporters.html.page import page
from hookcli.table import Report, Row, TensorStats

MODULES, STEPS = 500, 1000


def step(number: int, noise: NDArray[np.float64]) -> RecordedStep:
    """A step in which every figure of every module is another one; two of three modules have a parameter."""
    rows: dict[str, list[Row]] = {"activations": [], "grads": [], "updates": [], "time": []}
    for place, (std, mean, low, high, l2, grad, parameter, weight, change, forward, backward) in enumerate(
        noise.tolist()
    ):
        fqn = f"layers.{place // 5}.{place % 5}"
        rows["activations"].append(activation(fqn, "Linear", TensorStats(128, mean, std, -low, high, l2, zeros=place)))
        rows["grads"].append(gradient(fqn, "output", "Linear", grad))
        rows["time"].append(Row({"fqn": fqn, "forward_us": forward, "backward_us": backward}))
        if place % 3:
            rows["grads"].append(gradient(f"{fqn}.weight", "parameter", "Linear", parameter))
            rows["updates"].append(update(f"{fqn}.weight", "Linear", weight, change))
    return RecordedStep("Net", "train", number, tuple(Report(name, "Net", (), own) for name, own in rows.items()))


@pytest.mark.sweep
def test_500_modules_by_1000_steps() -> None:
    random = np.random.default_rng(0)
    track = Track("Net", "train")
    usual = random.lognormal(0, 3, (MODULES, 11))
    for number in range(STEPS):
        noise = random.lognormal(0, 0.1, (MODULES, 11))  # a tenth more or less from one step to the next
        track.take(replace(step(number, usual * noise), losses=[random.random()]))
    assert track.cells == MODULES * STEPS
    steps = {
        "facts": [],
        "notes": [],
        "tracks": [track.payload(0, True)],
        "ranks": None,
        "non_finite": [],
    }
    json.dumps(steps, allow_nan=False)
    text = page({"schema": 1, "kind": "record", "title": "a", "reports": [], "steps": steps, "live": None})
    assert len(text) < 10_000_000, f"{len(text):,} bytes"
