"""Handmade records of runs, with figures that a person can follow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hookcli.record.file.record_lines import End, Header, Line, NonFinite, RecordedStep
from hookcli.table import STATS_COLUMNS, Column, Report, Row, Skipped, TensorStats

HEADER = Header("train.py", ["train.py", "--epochs", "3"], "2026-11-21T20:00:00+00:00", 100, {"hookcli": "0.1.0"})
_MODULE = tuple(Column(n, n) for n in ("fqn", "type", "calls", "index", "path", "shape", "dtype"))
_UPDATE = tuple(Column(n, n) for n in ("fqn", "type", "shape", "dtype", "weight", "update", "ratio"))
SIXTEEN = [8, 16]


def activation(fqn: str, kind: str, stats: TensorStats, *, path: str = "", calls: int = 1) -> Row:
    values = {"fqn": fqn, "type": kind, "calls": calls, "index": 0, "path": path, "shape": SIXTEEN, "dtype": "float32"}
    return Row(values, stats)


def gradient(fqn: str, kind: str, owner: str, l2: float, *, path: str = "", nan: int = 0, inf: int = 0) -> Row:
    stats = TensorStats(128, 0.0, l2 / 10, -l2, l2, l2, nan=nan, inf=inf)
    values = {"fqn": fqn, "kind": kind, "type": owner, "calls": 1, "index": 0, "path": path}
    return Row(values | {"shape": SIXTEEN, "dtype": "float32"}, stats)


def update(fqn: str, owner: str, weight: float, change: float) -> Row:
    values = {"fqn": fqn, "type": owner, "shape": SIXTEEN, "dtype": "float32", "weight": weight, "update": change}
    return Row(values | {"ratio": change / weight if weight else float("nan")})


def recorded_step(
    step: int = 0, *, model: str = "Net", phase: str = "train", std: float = 1.0, **values: Any
) -> RecordedStep:
    """A net of `body` (`body.0`, a linear layer, and `body.1`, a ReLU) and `head`.

    Parameters of body.0: gradients of norms 3 and 4, so 5 together; weights of 30 and 40 that change by 0.03 and 0.04,
    so by 0.001. Those of head: a gradient of 12, so 13 in all; a weight of 120 that changes by 0.12.
    """
    seen = [
        activation("", "Net", TensorStats(80, 0.5, std, -2.0, 3.0, 9.0)),
        activation("body", "Sequential", TensorStats(128, 0.4, std / 2, 0.0, 2.0, 8.0, zeros=64)),
        activation("body.0", "Linear", TensorStats(128, -0.1, std / 4, -1.0, 2.0, 7.0)),
        activation("body.1", "ReLU", TensorStats(128, 0.4, std / 2, 0.0, 2.0, 8.0, zeros=64)),
        activation("head", "Linear", TensorStats(80, 0.5, std, -2.0, 3.0, 9.0)),
    ]
    reports = [Report("activations", model, (*_MODULE, *STATS_COLUMNS), seen, {"device": "cpu"}, {"rows": 5})]
    if phase == "train":
        reports += [_grads(model), _updates(model)]
        values = {"losses": [2.0 / (1 + step)], "seconds": 0.25, "plain_seconds": 0.2} | values
    return RecordedStep(model, phase, step, tuple(reports), **values)


def _grads(model: str) -> Report:
    rows = [
        gradient("head", "output", "Linear", 0.5),
        gradient("head.weight", "parameter", "Linear", 12.0),
        gradient("body.1", "output", "ReLU", 0.25),
        gradient("body.0", "output", "Linear", 0.125),
        gradient("body.0.bias", "parameter", "Linear", 4.0),
        gradient("body.0.weight", "parameter", "Linear", 3.0),
    ]
    skipped = (Skipped("head.bias", "got no gradient"),)
    return Report("grads", model, (*_MODULE, Column("kind", "Kind"), *STATS_COLUMNS), rows, skipped=skipped)


def _updates(model: str) -> Report:
    rows = [
        update("body.0.weight", "Linear", 30.0, 0.03),
        update("body.0.bias", "Linear", 40.0, 0.04),
        update("head.weight", "Linear", 120.0, 0.12),
    ]
    return Report("updates", model, _UPDATE, rows)


def bad(step: int = 100) -> NonFinite:
    rows = [
        activation("body.0", "Linear", TensorStats(128, -0.1, 50.0, -1e30, 2e30, 3e30)),
        activation("body.1", "ReLU", TensorStats(128, 0.4, 1.0, 0.0, 2.0, 8.0, zeros=64, nan=12, inf=1)),
    ]
    report = Report("activations", "Net", (*_MODULE, *STATS_COLUMNS), rows)
    return NonFinite("Net", "train", step, "body.1", "output", 12, 1, (report,))


def ran(model: str = "Net", **values: Any) -> Mapping[str, Any]:
    base = {
        "model": model,
        "forwards": 300,
        "no_grad_forwards": 40,
        "steps": 300,
        "recorded_steps": 4,
        "parameters": 11_689_512,
    }
    return base | {"notes": []} | values


def end(models: Sequence[Mapping[str, Any]] | None = None, **values: Any) -> End:
    models = [ran()] if models is None else models
    steps = max((model["steps"] for model in models), default=0)
    found = {"exit_code": 0, "error": None, "seconds": 41.2, "models": models, "program_steps": steps}
    return End(**found | values)


def text(lines: Iterable[Line]) -> str:
    return "".join(json.dumps(line.to_dict()) + "\n" for line in lines)


def same(found: Iterable[Line], expected: Iterable[Line]) -> bool:
    """Whether they are the same lines: a record gives lists for tuples, and keeps nine digits."""
    one, other = (
        json.loads(f"[{','.join(text(lines).splitlines())}]", parse_float=_shorter) for lines in (found, expected)
    )
    return bool(one == other)


def _shorter(number: str) -> str:
    return f"{float(number):.7g}"


def save(path: Path, lines: Iterable[Line]) -> Path:
    path.write_text(text(lines))
    return path


RUN = (
    HEADER,
    recorded_step(0),
    recorded_step(100, std=1.5),
    recorded_step(100, phase="no_grad", forward=2),
    recorded_step(200, std=2.0),
    end(),
)
