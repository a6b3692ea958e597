"""Which windows of a record to show, and what of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hookcli.errors import UsageError, unknown
from hookcli.record.file.overview import findings, of_probe, overview
from hookcli.record.file.reading import Place, Record, in_part
from hookcli.record.file.record import Bad, Window
from hookcli.record.file.series import names, needed, series, spoken, titled
from hookcli.report import Report, Skipped
from hookcli.system.escaping import shell_path


class NothingToShowError(UsageError):
    """The windows that are asked for are all damaged, or nothing was measured in them. One that is still to come, of a
    run that is followed, may be whole."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was asked for: of `model` and `phase` the windows of a `step`, else the last ones; of these the report of a
    `probe`, else all joined; or with `over_time` what became of a module or parameter, "" or "." the model itself."""

    step: int | None = None
    model: str | None = None
    phase: str | None = None
    probe: str | None = None
    over_time: str | None = None

    def reports(self, record: Record) -> list[Report]:
        """Of what is asked for. Raises UsageError for what the record doesn't have, and where nothing can be shown."""
        places = self._known(record)
        if self.over_time is not None:
            return self._series(record, "" if self.over_time == "." else self.over_time, self._of_one_phase(places))
        chosen = places if self.step is None else self._at_step(places, record)
        windows = list(record.last(chosen) if self.step is None else record.windows(chosen))
        if chosen and not any(window.reports for window in windows):
            raise NothingToShowError(self._nothing(record, chosen, places))
        found = [report for window in windows if window.reports for report in self._of_window(window)]
        if not found and self.probe:
            raise UsageError(_no_probe(self.probe, record))
        return found

    def bad(self, record: Record) -> list[Report]:
        """The rows before what was not finite, as far as that is of what is asked for."""
        if self.step is not None or self.probe or self.over_time is not None:
            return []
        mine = [bad for bad in record.bad if self.model in (None, bad.model) and self.phase in (None, bad.phase)]
        return [report for bad in mine[:1] for report in _before(bad)]

    def _known(self, record: Record) -> list[Place]:
        for what, given, known in (
            ("--model", self.model, [place.model for place in record.places]),
            ("--phase", self.phase, [place.phase for place in record.places]),
        ):
            if given is not None and given not in known:
                raise UsageError(unknown(what, given, dict.fromkeys(known)))
        return self.of(record.places)

    def of(self, places: Iterable[Place]) -> list[Place]:
        """Those of the model and phase that are asked for."""
        return [p for p in places if self.model in (None, p.model) and self.phase in (None, p.phase)]

    def _of_one_phase(self, places: Sequence[Place]) -> list[Place]:
        """Those of training, for a model that was trained: both kinds in one line would say little."""
        trained = {place.model for place in places if place.phase == "train"}
        return [p for p in places if self.phase or p.phase == "train" or p.model not in trained]

    def _series(self, record: Record, fqn: str, places: Sequence[Place]) -> list[Report]:
        whole = {place.key for place in places if record.counts(place)}
        shown = [place for place in places if record.counts(place) or place.key not in whole]
        found = series(record.windows(shown, needed(fqn)), fqn)
        if not found:
            known = {name for window in record.last(places) for name in names(window)}
            if places and not known:
                raise NothingToShowError(self._nothing(record, places, ()))
            if fqn in known:
                raise UsageError(f"--over-time {fqn}: nothing was measured of it")
            see = f"hookcli show {shell_path(record.path)} lists them"
            raise UsageError(unknown("module or parameter", fqn, known, see=see))
        left_out = [place for place in places if place not in shown]
        return [replace(report, skipped=_of_series(report, fqn, left_out)) for report in found]

    def _at_step(self, places: Sequence[Place], record: Record) -> list[Place]:
        found = [place for place in places if place.step == self.step]
        if not found:
            every = f" (every {record.header.every:,})" if record.header else ""
            raise UsageError(f"--step {self.step}: was not looked at{self._nearest(places)}{every}")
        return found

    def _nothing(self, record: Record, chosen: Sequence[Place], places: Sequence[Place]) -> str:
        """Why these windows show nothing, and which of the places are the nearest to their step."""
        damaged = [place.line for place in chosen if place.line in record.damaged]
        lines = f"line{'s' * (len(damaged) != 1)} {in_part(damaged)}"
        why = f"all that was measured is damaged ({lines})" if damaged else "nothing was measured"
        if self.step is None:
            return f"{record.path}: no window can be shown: {why}"
        return f"--step {self.step}: {why}{self._nearest([p for p in places if p not in chosen])}"

    def _nearest(self, places: Sequence[Place]) -> str:
        return _nearest(sorted({place.step for place in places}), self.step or 0)

    def _of_window(self, window: Window) -> Iterable[Report]:
        return of_probe(window, self.probe) if self.probe else [overview(window), *findings(window)]


def _of_series(report: Report, fqn: str, places: Iterable[Place]) -> list[Skipped]:
    """Those of the places that are of the report's model and phase, as left out."""
    mine = (report.model, report.meta["mode"])
    return [
        Skipped(fqn, _INCOMPLETE, f"step {place.step:,}")
        for place in places
        if (titled(place.model, fqn), spoken(place.phase)) == mine
    ]


_INCOMPLETE = "its step was not finished; --step shows it"


def _nearest(steps: Sequence[int], step: int) -> str:
    below, above = [s for s in steps if s < step][-1:], [s for s in steps if s > step][:1]
    near = [f"{s:,}" for s in (*below, *above)]
    return f"; the nearest {'is' if len(near) == 1 else 'are'} {' and '.join(near)}" if near else ", as no step was"


def _no_probe(probe: str, record: Record) -> str:
    known = {report.probe for window in record.last() for report in window.reports}
    if probe in known:
        return (
            f"--probe {probe}: the windows of this choice have none (there are gradients and updates in training alone)"
        )
    return unknown("--probe", probe, known)


def _before(bad: Bad) -> list[Report]:
    """The last rows of each probe, the bad one last: never folded."""
    place = f"{bad.model}, step {bad.step:,}: the last before {bad.fqn or 'the model'}"
    return [replace(report, model=place, grouping="list") for report in bad.reports]
