"""The first module whose output, or whose update, grew before a loss ran away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import RecordedStep
from hookcli.table import Row
from hookcli.table.losses import LossCourse
from hookcli.table.names import is_within, owner_of

_GROWN = 10.0  # times the largest of the steps before
_BEFORE, _STEPS = 3, 16  # recorded steps, at least and at most
_SMALL = 0.01  # of the weights: an update may grow to this


def grown(record: Record, model: str) -> str:
    """The text on the first module that grew, of the steps up to that at which the loss ran away.

    "" if it did not, if none has grown or the first part of the model, as by a batch, or if an update that was larger
    than the weights tells why.
    """
    course = record.courses().get(model, LossCourse())
    ran_away = [step for step in (course.jumped, course.first_fault if course.not_finite else None) if step is not None]
    if not ran_away or course.blow_up():
        return ""
    at = min(ran_away)
    entries = [one for one in record.entries if (one.model, one.phase) == (model, "train") and one.step <= at]
    return first_grown([*record.steps(entries[-_STEPS:])])


def first_grown(steps: Sequence[RecordedStep]) -> str:
    """The text on the first of these steps in which a module's output or update is ten times as large as all before."""
    largest: dict[tuple[str, str], float] = {}
    for number, step in enumerate(steps):
        times: dict[tuple[str, str], float] = {}
        for what, name, value, least in figures(step):
            before = largest.get((what, name), 0.0)
            if number >= _BEFORE and before and value > max(_GROWN * before, least):
                times.setdefault((what, name), value / before)
            largest[what, name] = max(value, before)
        places = [key for key in times if not any(is_within(name, key[1]) and name != key[1] for _, name in times)]
        for what, name in places[:1]:
            if (what, name) == first_part(largest):  # whose input has grown, perhaps: a batch is the cause
                return ""
            grew = f"the {what} of {name or 'the model'} grew first: {times[what, name]:.3g} times as large"
            return f"{grew} as in any recorded step before, at step {step.step:,}"
    return ""


def first_part(places: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """The first of these places, in the order in which modules ran, within which there is no other."""
    every = [*places]
    return next(key for key in every if not any(is_within(name, key[1]) and name != key[1] for _, name in every))


def figures(step: RecordedStep) -> Iterator[tuple[str, str, float, float]]:
    """The outputs of modules, as they ran, then the updates: what, of which module, how large, and from where on."""
    kinds: tuple[tuple[str, str, Callable[[Row], float | None], float], ...] = (
        ("activations", "output", lambda row: row.stats.rms if row.stats else None, 0.0),
        ("updates", "update", lambda row: row.get("ratio"), _SMALL),
    )
    for probe, what, read, least in kinds:
        for row in step.rows(probe):
            if (value := read(row)) is not None:
                yield what, row.fqn if what == "output" else owner_of(row.fqn), value, least
