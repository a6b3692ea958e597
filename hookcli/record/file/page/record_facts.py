"""The facts and notes on a run that stand at the top of its page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hookcli.record.file.page.track import Track
from hookcli.record.file.ranks.ranked_record import RankedRecord
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import End
from hookcli.record.file.views.over_time import about
from hookcli.table.formatting import clock, counted


def run_facts(record: Record, tracks: Sequence[Track]) -> list[tuple[str, str]]:
    """Name and text of each fact on a run: its script, how it ended, how much was recorded, and its versions."""
    header, end = record.header, record.end
    meta, versions = (about(header), header.versions) if header else ({}, {})
    took, own_part = times(end) if end else ("", "")
    pairs = [
        ("Command", str(meta.get("command") or meta.get("script") or record.path)),
        ("Started", str(meta.get("started") or "").replace("T", " ").replace("+00:00", " UTC")),
        ("Took", took),
        ("Ended", ended(end)),
        ("Recorded", recorded(tracks, meta.get("every", 1))),
        ("hookcli's part", own_part),
        ("Ranks", f"{record.ranks:,}" if isinstance(record, RankedRecord) else ""),
        ("Models", models(end) if end else ""),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items() if name != "hookcli")),
    ]
    return [(name, text) for name, text in pairs if text]


def recorded(tracks: Sequence[Track], every: int) -> str:
    """12 steps and 3 forwards without gradients, one in 10"""
    trained = sum(len(track.steps) for track in tracks if track.phase == "train")
    others = sum(len(track.steps) for track in tracks) - trained
    counts = [counted(trained, "step")] if trained or not others else []
    counts += [f"{counted(others, 'forward')} without gradients"] if others else []
    return f"{' and '.join(counts)}{f', one in {every:,}' if every > 1 else ''}"


def models(end: End) -> str:
    """The models that ran, with the numbers of their parameters."""
    return ", ".join(f"{model['model']} ({model['parameters']:,} parameters)" for model in end.models)


def times(end: End) -> tuple[str, str]:
    """How long the run took, and hookcli's own part."""
    steps = f" for {counted(end.program_steps, 'step')}" if end.program_steps else ""
    own = end.hookcli_seconds
    share = f" ({100 * own / end.seconds:.0f}%)" if own and end.seconds else ""
    return f"{clock(end.seconds)}{steps}", f"{clock(own)}{share}" if own else ""


def ended(end: End | None) -> str:
    """The error or the exit code with which the run ended."""
    if end is None:
        return "no end is recorded (running, or killed)"
    code = "" if end.exit_code is None else f"exit code {end.exit_code}"
    return f"{end.error} ({code})" if end.error and code else end.error or code or "by itself"


def run_notes(record: Record, remarks: Iterable[str], *, rounded: bool) -> list[str]:
    """Notes on the run, remarks on what the record lacks, and that figures are `rounded`, each once."""
    end = record.end
    of_models = [f"{model['model']}: {note}" for model in (end.models if end else ()) for note in model["notes"]]
    digits = ["figures of modules are rounded to 3 digits, since there are so many"] if rounded else []
    return [*dict.fromkeys([*remarks, *(end.notes if end else ()), *of_models, *digits])]
