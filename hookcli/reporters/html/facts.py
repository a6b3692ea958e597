"""The top of a page: what ran, on what, how long, and the totals of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hookcli.reporters.footer import training_memory, vector_in_words
from hookcli.table import SEVERITIES, Report
from hookcli.table.formatting import counted, duration, loss, quantity, size
from hookcli.table.meta import WEIGHTS
from hookcli.table.report import INFO

_LIBRARIES = ("torch", "torchvision", "timm", "transformers")


def heads(reports: Sequence[Report], kind: str) -> dict[str, dict[str, Any]]:
    """The top of the page, under "", and of the page of each model by its name, if the page has several.

    A comparison's facts are its differences: totals of one side would not hold for both.
    """
    groups = {"": [report for report in reports if report.probe == "diff"] or reports}
    models = dict.fromkeys(report.model for report in reports) if kind == "model" else {}
    groups |= {name: [report for report in reports if report.model == name] for name in models if len(models) > 1}
    return {
        name: {"facts": facts(group), "tiles": tiles(group), "failures": failures(group), **judgement(group)}
        for name, group in groups.items()
    }


def judgement(reports: Iterable[Report]) -> dict[str, str]:
    """The worst severity of the checks' findings as the colour of a `lamp`, and their numbers: 2 errors, 1 info."""
    totals = next((report.totals for report in reports if report.probe == "check"), {})
    numbers = {severity: totals[key] for severity in (*SEVERITIES, INFO) if totals.get(key := f"{severity}s")}
    counts = ", ".join(counted(number, severity) for severity, number in numbers.items())
    return {"lamp": next(iter(numbers), "good"), "judged": counts or "passed"}


def texts(reports: Iterable[Report], key: str) -> list[str]:
    """The values that the runs have under a key, each once."""
    values = (report.meta.get(key) for report in reports)
    return [*dict.fromkeys(str(value) for value in values if value not in (None, ""))]


def facts(reports: Sequence[Report]) -> list[tuple[str, str]]:
    """Name and text of each fact on how a model was run."""
    named = {"Dtype": "dtype", "Mode": "mode", "Autocast": "amp", "Optimizer": "optimizer"}
    pairs = [
        *made_up(reports),
        ("Device", device(texts(reports, "device"))),
        *((title, " / ".join(texts(reports, key))) for title, key in named.items()),
        differentiated(reports),
        ("Processes", " / ".join(texts(reports, "processes"))),
        *times(reports),
        ("Seed", " / ".join(texts(reports, "seed"))),
        ("Versions", ", ".join(f"{name} {text}" for name in _LIBRARIES for text in texts(reports, name))),
    ]
    return [(name, text) for name, text in pairs if text]


def made_up(reports: Sequence[Report]) -> list[tuple[str, str]]:
    """The weights and the input. A run on the meta device has no values."""
    measured = [report for report in reports if report.meta.get("device") != "meta"]
    is_random = any(text.startswith("rand") for text in texts(measured, "fill"))
    inputs = texts(reports, "input")
    if is_random:
        inputs = [text if "(its example)" in text else f"{text} (random)" for text in inputs]
    weights = " / ".join(texts(reports, WEIGHTS)) if measured else ""
    return [("Weights", weights), ("Input", " / ".join(inputs))]


def differentiated(reports: Sequence[Report]) -> tuple[str, str]:
    """The loss and its name; without one, the vector that backward began with."""
    meta = next((report.meta for report in reports if report.meta.get("loss_value") is not None), None)
    if meta is None:
        vectors = texts(reports, "backward_vector")
        return "Backward", " / ".join(map(vector_in_words, vectors))
    value = loss(meta["loss_value"])
    return "Loss", f"{value} ({meta['loss']})" if meta.get("loss") else value


def device(names: Sequence[str]) -> str:
    """The devices; what needs no values may have been computed on meta beside another one."""
    others = [name for name in names if name != "meta"]
    if others and len(others) < len(names):
        return f"{' / '.join(others)} (shapes, MACs and memory: meta)"
    return " / ".join(names)


def times(reports: Sequence[Report]) -> list[tuple[str, str]]:
    """How long the runs took, and hookcli's own part; a check has the time of all runs of its model."""
    judged = [report for report in reports if report.probe == "check"] or reports
    took = sum({report.meta.get("seconds") or 0.0 for report in judged})
    own = sum({report.meta.get("hookcli_seconds") or 0.0 for report in judged})
    if not took:
        return []
    cached = " (cached)" if texts(reports, "cached") else ""
    part = f"{duration(own)} ({100 * own / took:.0f}%)" if own else ""
    return [("Took", f"{duration(took)}{cached}"), ("hookcli's part", part)]


def tiles(reports: Sequence[Report]) -> list[tuple[str, str, str]]:
    """The totals of the model: a name, a figure and a note each."""
    totals: dict[str, Any] = {}
    for report in reports:
        totals |= report.totals if "params" in report.totals else {}
    if not totals:
        return []
    forward, trainable = forward_of(reports), totals.get("trainable")
    trained = "all trainable" if trainable == totals["params"] else f"{quantity(trainable)} trainable"
    figures = [("Parameters", quantity(totals["params"]), trained if totals["params"] else "")]
    if "macs" in totals:
        figures.append(("MACs", quantity(totals["macs"]), f"{totals['macs']:,} in {forward}"))
    if "kept_bytes" in totals:
        mode = f" in {totals['kept_mode']} mode" if totals.get("kept_mode") else ""
        figures.append(("Kept for backward", size(totals["kept_bytes"]), f"by {forward}{mode}"))
    training = [training_memory(report.totals) for report in reports if "grad_bytes" in report.totals]
    return [*figures, *(("Memory to train", *memory) for memory in training[:1])]  # another word


def forward_of(reports: Sequence[Report]) -> str:
    """The forward that costs are of, with its batch and mode."""
    metas = [report.meta for report in reports if "macs" in report.totals]
    if any(meta.get("complete") is False for meta in metas):
        return "the forward until it failed"
    batch, mode = (metas[0].get("batch"), metas[0].get("mode")) if metas else (None, None)
    setting = ", ".join(filter(None, (f"batch {batch}" if batch else "", mode)))
    return f"one forward at {setting}" if setting else "one forward"


def failures(reports: Sequence[Report]) -> list[str]:
    """A line for each run that did not end well, unless a finding says so."""
    if any(report.probe == "check" and report.findings for report in reports):
        return []
    incomplete = (report.meta for report in reports if report.meta.get("complete") is False)
    errors = (str(meta.get("error") or "The run ended early: rows are up to there.") for meta in incomplete)
    return [f"Incomplete: {error}" for error in dict.fromkeys(errors)]
