"""The lines around a table: the run above it; totals and what was not measured below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hookcli.registry.capability import capabilities
from hookcli.reporters.step_lines import before_clipping, is_of_step, step_lines
from hookcli.table import Report
from hookcli.table.columns.layouts import TRAINING_MEMORY
from hookcli.table.formatting import at_setting, counted, duration, loss, macs, number, plain, size
from hookcli.table.meta import RANDOM, WEIGHTS, Meta, only
from hookcli.table.names import in_words
from hookcli.table.validation import HEADLINES, OF_PEAK, SENTENCES


def totals_line(report: Report, *, sorts: bool = False, python: bool = False) -> str:
    """Write the exact totals; for checks, the numbers of findings.

    `sorts`: the user has sorted the rows. With `python` no option of a command is named.
    """
    if {"errors", "warnings", "checks", "modules"} <= report.totals.keys():
        return _verdict(report.totals)
    if not report.rows and not any(value for key, value in report.totals.items() if key != "nothing"):
        return str(report.totals.get("nothing", "Nothing was measured"))
    sentences = [report.totals.get(key) for key in SENTENCES]
    clipped = before_clipping(report.totals)
    memory = _memory(report, sorts, python)
    aside = (*SENTENCES, *OF_PEAK, "kept_mode", *(_MEMORY if memory else ()))
    totals = {key: value for key, value in report.totals.items() if key not in aside and not is_of_step(key)}
    parts = [_total(report, key, value, clipped if key == "param_grad" else "") for key, value in totals.items()]
    return "\n".join(filter(None, (" · ".join(filter(None, parts)), memory, *sentences, *step_lines(report.totals))))


_NO_PEAK = "not all at once, without temporaries"
_BESIDE_SHAPES = [f"`hookcli {one.name}`: {more}" for one in capabilities() if (more := one.adds_to.get("shapes"))]
_MEMORY = {**{c.name: c.title for c in TRAINING_MEMORY}, "kept_bytes": "kept for backward"}


def _memory(report: Report, sorts: bool, python: bool) -> str:
    """Write the memory that training takes, part by part, and unless the rows are sorted, how to see what keeps most.

    "" for totals without the parts.
    """
    totals = report.totals
    if "grad_bytes" not in totals:
        return ""
    total, parts = training_memory(totals)
    at = at_setting(only(report.meta, "batch"))
    other = totals.get("kept_mode")
    mode = f" in {other} mode" if other else ""
    where = f"{'--train ' if other else ''}--sort -kept: which modules keep it"
    if python or sorts:
        where = ("model.train()" if python else "--train") + ": in train mode" if other else ""
    line = f"memory held to train{at}: {parts}{mode} = {total}, {_NO_PEAK}" + (f" ({where})" if where else "")
    return line if python else "; ".join([line, *_BESIDE_SHAPES])


def training_memory(totals: Mapping[str, Any]) -> tuple[str, str]:
    """The memory that training takes, and its parts."""
    parts = {name: totals[key] for key, name in _MEMORY.items() if key in totals}
    return size(sum(parts.values())), " + ".join(f"{size(value)} {name}" for name, value in parts.items())


_REASONS = 3  # that the line below a table lists
_NAMED = {"stale_flags": "stale flags", "tensor_bytes": "bytes of tensors", "archive_bytes": "bytes in all"}
_OVER_ALL = {"param_grad": "gradient", "ratio": "|dw|/|w|"}


def _total(report: Report, key: str, value: Any, clipped: str = "") -> str:
    """Write one of the totals, by its name."""
    text = plain(value)
    if key == "macs":
        return (f"{macs(value)} ({text})" if value >= 1000 else macs(value)) + at_setting(report.meta)
    if key == "order":
        return str(value)
    if key == "hooks" and isinstance(value, dict):
        lines = []
        for hook, step in value.items():
            if step["buckets"] > 1:  # its effect on all of a step
                sent = "uncounted" if step["bytes_after"] is None else size(step["bytes_after"])
                error = f"error {number(step['relative_l2'])}, cosine {number(step['cosine'])}"
                what = f"all buckets of step {step['step']}"
                lines.append(f"{hook}, {what}: {size(step['bytes_before'])} to {sent}, {error}")
        return "\n".join(lines)
    if key in _OVER_ALL:
        return f"{_OVER_ALL[key]} of the parameters {text}{clipped}"
    name = _NAMED.get(key) or report.column(key).total or key
    return _measured(key, value) or f"{text} {name.removesuffix('s') if value == 1 else name}"


def _measured(key: str, value: Any) -> str:
    """Write bytes and times, which the endings of their names tell; "" for others."""
    if key == "kept_bytes":
        return f"{size(value)} kept for backward"
    if key == "bytes":
        return size(value)
    if key == "dtypes":
        return _dtypes(value)
    if key == "param_bytes":
        return f"{value / 2**20:,.1f} MiB" if value >= 2**20 else size(value)
    return f"{key.removesuffix('_us')} {duration(value / 1e6)}" if key.endswith("_us") else ""


def _dtypes(dtypes: Mapping[str, Any]) -> str:
    """Write the bytes of each dtype: all bfloat16, or float32 12.5 MiB, int64 8 B."""
    each = [f"{dtype} {size(part['bytes'])}" for dtype, part in dtypes.items()]
    return ", ".join(each if len(dtypes) > 1 else [f"all {dtype}" for dtype in dtypes])


_FAULTS = (("errors", "error", ""), ("warnings", "warning", ""))
_NOTES = (("infos", "note", ""), ("failed_checks", "check", " could not judge"))


def _counts(totals: Mapping[str, Any], words: Sequence[tuple[str, str, str]]) -> list[str]:
    """The totals that are not 0, of these names, each with its words."""
    return [f"{counted(totals[key], word)}{more}" for key, word, more in words if totals.get(key)]


def _verdict(totals: Mapping[str, Any]) -> str:
    faults = _counts(totals, _FAULTS)
    checks = counted(totals["checks"], "check")
    of = [counted(totals["modules"], "module")] if totals["modules"] else []  # none in the verdict on a program
    if "steps" in totals:
        every = f"{totals['of_steps']:,}" if totals.get("of_steps", 0) > totals["steps"] else ""
        known = f"{totals['losses']:,} of {every} losses" if "losses" in totals else "every loss"
        of += [f"{totals['steps']:,} of {every} steps", known] if every else [counted(totals["steps"], "step")]
    if forwards := totals.get("of_forwards"):
        of.append(f"{totals['forwards']:,} of {counted(forwards, 'forward')} without gradients")
    if of[2:]:
        of[-1] = f"and {of[-1]}"
    notes = _counts(totals, _NOTES)
    if faults:
        return f"{', '.join([*faults, *notes])} ({', '.join([checks, *of])})"
    passed = f"{'All ' if totals['checks'] > 1 else ''}{checks} passed" if totals["checks"] else "No check could run"
    notes += [f"though {totals['though']}"] if totals.get("though") else []
    return " ".join([", ".join([passed, *notes]), *([f"({', '.join(of)})"] if of else [])])


def vector_in_words(vector: str) -> str:
    """The start of a backward pass, in words, by the name of a vector of --backward-vector."""
    projections = {"randn": "a random projection of the output", "ones": "the sum of the output"}
    return f"gradients of {projections[vector]}" if vector in projections else f"vector-Jacobian product with {vector}"


def run_line(report: Report) -> str:
    """Describe the run in one line: model, input, device, mode, time."""
    meta = report.meta
    parts = [report.model]
    parts += _of_step(meta) if meta.keys() >= _STEP else []
    first = f"{counted(meta['batches'], 'batch', 'batches')}, first {meta['input']}" if "batches" in meta else ""
    parts += made_up(meta, first or str(meta.get("input") or ""))
    parts += _said(meta, "format", "device", "dtype", "mode", "simulated", "amp", "optimizer")
    why = f"; {meta['no_own_loss']}" if meta.get("no_own_loss") else ""  # the model's own loss was not differentiated
    if (value := meta.get("loss_value")) is not None:
        parts.append(f"loss {value:.4g} ({meta.get('loss')}{why})")
    elif "backward_vector" in meta:
        parts.append(f"{vector_in_words(meta['backward_vector'])}{why}")
    edits = (f"edited {edit}" for edit in meta.get("edits", ()))
    parts += [*_said(meta, "gradients"), *edits, *_said(meta, "sweep"), *_processes(meta)]  # another word
    overhead = f" (hookcli {duration(meta['hookcli_seconds'])})" if "hookcli_seconds" in meta else ""
    parts += [f"{'ran ' * bool(overhead)}{duration(meta['seconds'])}{overhead}"] if "seconds" in meta else []
    if plain := meta.get("plain_seconds"):
        parts.append(f"{duration(plain)} without hooks")
    if meta.get("complete") is False:
        parts.append("incomplete: the run failed" if meta.get("error") else "incomplete")
    return " · ".join([*parts, *_said(meta, "cached")])


_SAID = {"simulated": "memory of {}", "amp": "autocast {}", "gradients": "gradients {}", "cached": "cached"}


def _said(meta: Mapping[str, Any], *keys: str) -> list[str]:
    """What a run has under these keys, in the words of `_SAID`, else by itself."""
    return [_SAID.get(key, "{}").format(meta[key]) for key in keys if meta.get(key)]


def _processes(meta: Meta) -> list[str]:
    """The number of processes, and which of them are shown, where not all are merged."""
    if "processes" not in meta:
        return []
    how = f" ({meta['parallel']})" if meta.get("parallel") else ""
    rank = meta.get("rank")
    shown = f"rank {rank}" if isinstance(rank, int) else f"ranks {', '.join(map(str, rank or ()))}"
    return [f"{meta['processes']} processes{how}" + (f", {shown} shown" if rank is not None else "")]


def made_up(meta: Meta, input_text: str) -> list[str]:
    """Describe the weights, and the input `input_text` in words; a generated one by its distribution, if it has values.

    A run on the meta device has neither.
    """
    values = meta.get("device") != "meta"
    weights = str(meta.get(WEIGHTS) or "") if values else ""
    filled = str(meta.get("fill") or "") if values and input_text and "(its example)" not in input_text else ""
    drawn = filled.startswith("rand")
    if drawn and weights == RANDOM:
        return [f"random weights and input {input_text}"]
    parts = ["random weights" if weights == RANDOM else f"weights {weights}"] if weights else []
    of = f" of {filled}" if filled and not drawn else ""
    return [*parts, f"{'random ' * drawn}input {input_text}{of}"] if input_text else parts


_STEP = {"step", "forward", "forwards", "observed_forwards", "losses", "phase"}


def _of_step(meta: Meta) -> list[str]:
    """Describe a recorded step of a script: its number, phase, observed forwards and loss."""
    losses = meta["losses"]
    forward = "" if meta["forward"] is None else f", forward {meta['forward']:,} since that step"
    parts = [f"step {meta['step']:,}{forward}"]
    parts += [phase.replace("_", " ")] if (phase := meta["phase"]) and phase != "train" else []
    if losses:
        parts.append(f"loss {loss(sum(losses))}" + (f" ({len(losses)} backward passes)" if losses[1:] else ""))
    if meta["forwards"] > 1:
        seen = "" if meta["observed_forwards"] == meta["forwards"] else f", {meta['observed_forwards']} observed"
        parts.append(f"{meta['forwards']} forwards{seen}")
    return parts


def headlines(report: Report) -> list[str]:
    """The verdict, its cause and where it begins, as far as the report has them: the first lines of all."""
    return [str(report.totals[key]) for key in HEADLINES if report.totals.get(key)]


def without_headlines(report: Report) -> Report:
    """The report with the totals that stand below its table."""
    return replace(report, totals={key: value for key, value in report.totals.items() if key not in HEADLINES})


def totals_below(report: Report, *, sorts: bool = False, python: bool = False) -> list[str]:
    """Write the totals as they stand below a table, where headlines are above; nothing if they only count."""
    below = without_headlines(report)
    if report.rows and below.totals.keys() <= {"rows"}:
        return []
    return [totals_line(below, sorts=sorts, python=python)]


def short_totals(report: Report, totals: Sequence[str]) -> str:
    """The totals in one line; for shapes without the exact MACs, and without the parts of memory."""
    figures = report.totals
    if not {"macs", "grad_bytes"} <= figures.keys():
        return " · ".join(line for text in totals for line in text.split("\n") if line)
    frozen = [f"{figures['trainable']:,} trainable"] if figures["trainable"] != figures["params"] else []
    held, at = training_memory(figures)[0], at_setting(only(report.meta, "batch"))
    memory = f"{held} held to train{at} ({_NO_PEAK})"
    return " · ".join([f"{figures['params']:,} parameters", *frozen, macs(figures["macs"]), memory])


def run_lines(report: Report) -> list[str]:
    """The lines on a run around pictures of its tensors: the run, remarks, and what was not measured."""
    missing = [f"not measured: {skipped_line(report)}"] if report.skipped else []
    return [run_line(report), *remarks(report), *missing]


def next_line(reports: Iterable[Report]) -> str:
    """Name the command to type next, as the first report that has one says it; "" if none has."""
    return next((f"Next: {report.meta['next']}" for report in reports if report.meta.get("next")), "")


def remarks(report: Report) -> list[str]:
    """Return remarks on how to read the figures, a line each."""
    return [str(note) for note in report.meta.get("notes", ())]


def skipped_line(report: Report, *, python: bool = False) -> str:
    """List what was not measured, grouped by reason with an example of each."""
    reasons = by_reason((item.reason, f"{in_words(item.fqn)} {item.path}".rstrip()) for item in report.skipped)
    if len(reasons) > _REASONS:
        where = "report.skipped" if python else "--format json"
        reasons[_REASONS:] = [f"and {len(reasons) - _REASONS} more reasons ({where} lists all)"]
    return "; ".join(reasons)


def by_reason(items: Iterable[tuple[str, str]]) -> list[str]:
    """Group pairs of reason and name: a text per reason, with an example."""
    reasons: dict[str, dict[str, None]] = {}
    for reason, name in items:
        reasons.setdefault(reason, {})[name] = None
    more = {reason: f" and {len(names) - 1} more" if len(names) > 1 else "" for reason, names in reasons.items()}
    return [f"{next(iter(names))}{more[reason]}: {reason}" for reason, names in reasons.items()]
