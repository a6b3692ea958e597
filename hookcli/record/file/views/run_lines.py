"""Lines on a recorded run: how it went, what it compiled, and its first value that is not finite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hookcli.errors import shortened
from hookcli.record.file.record_lines import BACKWARD, SKIPPED, UNSEARCHED, End, Header, NonFinite
from hookcli.table import formatting
from hookcli.table.losses import LossCourse

_ERROR = 100  # characters of an exception's message; the program has shown all of it
_NAMED = 3  # models


def ran_line(
    header: Header, end: End | None, path: str | Path | None, courses: Mapping[str, LossCourse] | None = None
) -> str:
    """train.py: 300 steps of 2 models in 41.2 s, exit code 0; 8 recorded steps in train.run.jsonl

    With the `courses` of losses: ... in 41.2 s, loss 2.310 → 0.04110; 8 recorded steps in train.run.jsonl
    """
    if end is None:
        return f"{header.name}, started {header.started}: no end is recorded; it is still running, or was killed"
    forwards = sum(model["forwards"] + model["no_grad_forwards"] for model in end.models)
    steps = end.program_steps
    did = formatting.counted(steps, "step") if steps else formatting.counted(forwards, "forward")
    of = f"{did} of {formatting.counted(len(end.models), 'model')} in " if end.models else ""
    hookcli_time = f" ({formatting.clock(end.hookcli_seconds)} of it hookcli's own work)" if end.hookcli_seconds else ""
    code = "" if end.exit_code is None else f"exit code {end.exit_code}"
    error = shortened(end.error, _ERROR) if end.error else ""
    ended = f", {error} ({code})" if error and code else f", {error or code}" if error or code else ""
    kept = f"{_recorded(end)} in {path}" if path else "no record was kept"
    time = f"{formatting.clock(end.seconds)}{hookcli_time}{losses_of(end, courses or {})}"
    return f"{header.name}: {of}{time}{ended}; {kept}"


def losses_of(end: End, courses: Mapping[str, LossCourse]) -> str:
    """The first and the last loss, where one model was trained, and the loss of its first and last step is known."""
    trained = [model for model in end.models if model["steps"]]
    course = courses.get(trained[0]["model"]) if len(trained) == 1 else None
    last = end.program_steps - 1
    if not course or course.first_at != 0 or not course.known_at == trained[0]["steps"] - 1 == last > 0:
        return ""
    return f", loss {formatting.loss(course.first)} → {formatting.loss(course.last)}"


def compiled_lines(end: End | None, *, places: bool = True) -> list[str]:
    """compiled: 3 graphs, 1 graph break (train.py:31 ...), 14 s of compilation, 31% of the run. None without any."""
    made = end.compilation if end else None
    return [f"compiled: {made.line(end.seconds, places)}"] if made and end else []


def _recorded(end: End) -> str:
    """8 recorded steps and 2 forwards without gradients"""
    steps, forwards = (sum(model.get(f"recorded_{what}", 0) for model in end.models) for what in ("steps", "forwards"))
    unfinished = sum(max(0, model.get("recorded_steps", 0) - model["steps"]) for model in end.models if model["steps"])
    recorded = [formatting.counted(steps, "recorded step")] if steps or not forwards else []
    recorded = [f"{text} ({unfinished} unfinished)" if unfinished else text for text in recorded]
    word = "forward" if recorded else "recorded forward"
    return " and ".join([*recorded, *([f"{formatting.counted(forwards, word)} without gradients"] if forwards else [])])


def left_out_line(end: End) -> str:
    """516 forwards without gradients were left out (Agent.actor); --no-grad N records more. Empty if there are none."""
    models = [model for model in end.models if model.get("left_out")]
    number = sum(model["left_out"] for model in models)
    verb = "were" if number != 1 else "was"
    names = ", ".join(model["model"] for model in models[:_NAMED]) + (", ..." if models[_NAMED:] else "")
    left_out = formatting.counted(number, "forward")
    return f"{left_out} without gradients {verb} left out ({names}); --no-grad N records more" if models else ""


def non_finite_line(value: NonFinite) -> str:
    """first non-finite value: 12 NaN in the output of layer1.relu (Net, step 3)"""
    phase = "" if value.phase == "train" else f", {value.phase}"
    cause = f"; {value.cause}" if value.cause else ""
    place = f"{value.model}, step {value.step:,}{phase}"
    if value.cause in (UNSEARCHED, SKIPPED):
        return f"the loss is {'NaN' if value.nan else 'Inf'} ({place}); {value.cause}"
    kept = f"; {value.kept}" if value.kept else ""
    if value.what.startswith(BACKWARD):
        made = f"the {value.what} turned a finite gradient into {counts_of(value)}"
        return f"first non-finite value: {made} ({place}){cause}{kept}"
    return f"first non-finite value: {counts_of(value)} in {place_of(value)} ({place}){cause}{kept}"


def counts_of(value: NonFinite) -> str:
    """The numbers of a value's NaN and infinities: 3 NaN and 1 Inf."""
    return " and ".join(f"{count:,} {what}" for count, what in ((value.nan, "NaN"), (value.inf, "Inf")) if count)


def place_of(value: NonFinite) -> str:
    """Where a value is, in words: the output of layer1, the model's output, the loss."""
    if value.what == "loss":
        return "the loss"
    return f"the {value.what} of {value.fqn}" if value.fqn else f"the model's {value.what}"
