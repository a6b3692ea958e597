"""A record to export, and readers of what was exported."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands.growing import until
from records import HEADER, activation, gradient, recorded_step, save
from support import Later

from hookcli.table import Report, TensorStats

wandb = Later("wandb.proto.wandb_internal_pb2")
Cli = Callable[..., Any]
ODD = "od\x1b[31md.\u2028=1+1"
NAN, INF = float("nan"), float("inf")


def lines() -> list[Any]:
    """Two models, one in two phases; odd names, NaN and infinities, and figures beyond float32."""
    odd = [activation(ODD, "Li\nnear", TensorStats(128, NAN, INF, -1e300, 1e-300, 0.1, nan=3, inf=2), path='["a"]')]
    odd += [activation(ODD, "Linear", TensorStats(128, 0.1, 0.2, -1.0, 2.0, 7.0), path='["b"]')]
    grads = [gradient("odd.weight", "parameter", "Linear", INF, inf=3)]
    first = recorded_step(0)
    reports = (replace(first.reports[0], rows=odd), replace(first.reports[1], rows=grads))
    return [
        HEADER,
        first,
        recorded_step(100, std=1.5),
        recorded_step(100, phase="no_grad", forward=0),
        recorded_step(100, phase="no_grad", forward=1, std=0.3),
        replace(first, model="../G /x", step=50, reports=reports, losses=[NAN]),
        recorded_step(200, losses=[INF]),
        recorded_step(300, complete=False),
    ]


def relaxed(value: Any) -> Any:
    return {"NaN": NAN, "Infinity": INF, "-Infinity": -INF}.get(value, value) if isinstance(value, str) else value


def reports(cli: Cli, *argv: str) -> list[dict[str, Any]]:
    return json.loads(cli(*argv, "-f", "json").out)["reports"]


def figures(report: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str, float]]:
    """Each row with each of its declared figures."""
    for row in report["rows"]:
        for column in report["columns"]:
            value = relaxed(row.get(column["name"]))
            if isinstance(value, (int, float)) and column["name"] not in ("step", "forward", "calls", "call", "index"):
                yield row, column["name"], value


def same(a: Any, b: Any) -> bool:
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


def float32(value: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(INF, value)


def tag(report: Mapping[str, Any], row: Mapping[str, Any], figure: str) -> str:
    stats = ("mean", "std", "zeros", "nan", "inf")
    place = (row["fqn"] or "(model)") + (row.get("path") or "")
    place = place.replace("\x1b", "\\x1b").replace("\u2028", "\\u2028")
    if report["probe"] == "step":
        return f"(model)/{figure}"
    return f"{'activations.' * (figure in stats)}{figure}/{place}"


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of an offline run: LevelDB's log format (blocks of 32 KiB) after a header of 7 bytes.

    wandb itself has read them in Go since 0.2x, for `wandb sync`; its messages are those of its Python package.
    """
    data, at, parts = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the rest of a block that has no room for a header is zeros
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        if at + 7 + size > len(data):  # not yet written
            return
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield wandb.Record.FromString(parts)
            parts = b""


def wandb_runs(folder: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]], Any]]:
    """The config, the history and the run of each offline run."""
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        until(lambda path=path: any(found.WhichOneof("record_type") == "exit" for found in wandb_records(path)))
        config: dict[str, Any] = {}
        history: list[dict[str, Any]] = []
        for found in wandb_records(path):
            if found.WhichOneof("record_type") == "run":
                run = found.run
                config |= {item.key: json.loads(item.value_json) for item in run.config.update}
            elif found.WhichOneof("record_type") == "history":
                line: dict[str, Any] = {}
                for item in found.history.item:
                    *outer, name = item.nested_key or [item.key]
                    (line.setdefault(outer[0], {}) if outer else line)[name] = relaxed(json.loads(item.value_json))
                history.append(line)
        yield config, history, run


def with_histogram(hist: Mapping[str, Any], stats: TensorStats) -> Report:
    """A report of one module whose output has this histogram."""
    row = activation("body", "Linear", stats)
    return Report("activations", "Net", [], [replace(row, values={**row.values, "hist": hist})])


def killed_record(folder: Path) -> Path:
    """A record of a run that was killed in the middle of a line."""
    path = save(folder / "r.run.jsonl", lines())
    with path.open("a") as file:
        file.write('{"line":"step","model":"Net","pha')
    return path


def require_refused(cli: Cli, record: Path, argv: tuple[str, ...], said: str) -> None:
    """Fails unless `hookcli show` of the record, alone in its folder, ends with this error and writes nothing."""
    ran = cli("show", record.name, *argv)
    assert ran.code == 2 and said in ran.err and len(ran.err.splitlines()) == 1, ran.err
    assert sorted(path.name for path in record.parent.iterdir()) == [record.name]


def require_library(cli: Cli, name: str, package: str) -> None:
    """Fails unless the format says which library is missing, and how it is installed."""
    ran = cli("show", "r.run.jsonl", "-f", name, "-o", "x")
    assert ran.code == 2 and f"--format {name}: {package} is not installed; pip install 'hookcli[{name}]'" in ran.err
    assert not Path("x").exists() and cli("show", "r.run.jsonl").code == 0


def one_shot(cli: Cli, name: str, output: str) -> dict[str, Any]:
    """The report of a command, saved as a.json, after it was also exported in this format."""
    for form, file in (("json", "a.json"), (name, output)):
        ran = cli("activations", "net.py:Net", "-i", "2x3x4x4", "-f", form, "-o", file)
        assert ran.code == 0 and ran.out == "", ran.err
    [report] = json.loads(Path("a.json").read_text())["reports"]
    return dict(report)
