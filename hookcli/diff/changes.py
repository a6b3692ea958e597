"""Changes since a baseline: each cause once, and a count of what follows from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hookcli.diff.origin import first_beyond
from hookcli.diff.rows import diff
from hookcli.diff.settings import ChangedSettings, changes_of
from hookcli.diff.tolerance import Tolerance
from hookcli.table import Report, Row, strict
from hookcli.table.formatting import plain
from hookcli.table.names import is_within, operator_owner


class Change(NamedTuple):
    """A difference from the baseline at one module or parameter; `excess` is how many times the tolerance a statistic
    moved.
    """

    fqn: str
    message: str
    excess: float | None = None


def changes(then: Mapping[str, Report], now: Mapping[str, Report], tolerance: Tolerance | None) -> list[Change]:
    """The changes between reports, given by probe: in settings, shapes, activations and gradients, as far as both have
    them.

    Reported are modules whose settings, type, parameters or freezing changed, modules that are new, gone or renamed,
    modules whose output shape changed while the input shape did not, and the first of the gradients that were lost.
    Other differences in shapes and statistics follow from such a change and are counted. If nothing of the kind
    changed, the first different shape is reported, else the first statistic beyond tolerance, else the first gradient.
    """
    shared = [name for name in then if name in now]
    compared = {name: diff(then[name], now[name], tolerance).rows for name in shared if name != "settings"}
    causes = _Causes()
    if "settings" in shared:
        _settings(then["settings"].rows, now["settings"].rows, causes)
    if "shapes" in shared:
        _shapes(compared["shapes"], then["shapes"].rows, now["shapes"].rows, causes)
    _lost(compared.get("grads", ()), causes)
    _statistics(compared.get("activations", ()), "activation", "its output", causes)
    _statistics(compared.get("grads", ()), "gradient", "its gradient", causes)
    return list(causes.changes())


@dataclass
class _Causes:
    """The changes found, by module, and a count of what follows from them, by kind."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    excess: dict[str, float] = field(default_factory=dict)
    follow: dict[str, int] = field(default_factory=dict)

    def add(self, fqn: str, text: str) -> None:
        """Add a cause at a module or parameter."""
        self.texts.setdefault(fqn, []).append(text)

    def first_of(self, rows: Sequence[Row], what: str, text: str) -> None:
        """Report the first of these rows if nothing else was reported before, and count the others."""
        first = first_beyond(rows) if not self.texts else None
        if first:
            self.add(first.fqn, f"{text}{first['differs']}")
            if math.isfinite(first.get("times") or 0.0):
                self.excess[first.fqn] = first["times"]
        if rest := len(rows) - bool(first):
            self.follow[what] = self.follow.get(what, 0) + rest

    def changes(self) -> Iterator[Change]:
        """Yield a change per place; the last one counts what follows."""
        follow = ", ".join(f"{number} {what}{'s' * (number > 1)}" for what, number in self.follow.items())
        for number, (fqn, texts) in enumerate(self.texts.items()):
            more = f"; changed as a result: {follow}" if follow and number == len(self.texts) - 1 else ""
            yield Change(fqn, f"{'; '.join(texts)}{more}", self.excess.get(fqn))


def _settings(then: Sequence[Row], now: Sequence[Row], causes: _Causes) -> None:
    """Changed settings of modules whose type is the same; another type has other settings."""
    current = {row.fqn: row for row in now}
    for row in then:
        other = current.get(row.fqn)
        if other is None or other.get("type") != row.get("type"):
            continue
        if changed := changes_of(strict(row.get("settings", {})), strict(other.get("settings", {}))):
            causes.add(row.fqn, ChangedSettings(row.fqn, "", changed).text)


def _shapes(compared: Sequence[Row], then: Sequence[Row], now: Sequence[Row], causes: _Causes) -> None:
    old, new = _first_rows(then), _first_rows(now)
    resized = {fqn: text for fqn in old.keys() & new.keys() if (text := _resized(old[fqn], new[fqn]))}
    changed = resized.keys() | {row.fqn for row in compared if row.get("change")}
    rest = []
    for row in compared:
        fqn = row.fqn
        if became := _became(row, old):
            causes.add(fqn, became)
        elif row.get("beyond") and fqn not in causes.texts:
            if fqn in resized and not _any_within(fqn, changed | causes.texts.keys()):
                causes.add(fqn, resized[fqn])
            elif _gives_another_shape(old.get(fqn), new.get(fqn)) and not _any_within(fqn, old):
                causes.add(fqn, row["differs"])
            elif row.get("only"):
                causes.add(fqn, _unmeasured(row))
            else:
                rest.append(row)
    causes.first_of(rest, "shape", "")


def _first_rows(rows: Sequence[Row]) -> dict[str, Row]:
    """The first row of each module or operator."""
    return {row.fqn: row for row in reversed(rows)}


def _any_within(fqn: str, places: Iterable[str]) -> bool:
    return any(is_within(place, fqn) for place in places)


def _resized(old: Row, new: Row) -> str:
    """The change of a module's number of parameters, else of those that are trained, in words; "" for none."""
    for key, name in (("params", "parameters"), ("trainable", "trainable parameters")):
        if old.get(key) != new.get(key):
            return f"{name} {plain(old.get(key))} → {plain(new.get(key))}"
    return ""


def _gives_another_shape(old: Row | None, new: Row | None) -> bool:
    """True for a module of both runs that gives another shape for the same input."""
    if old is None or new is None:
        return False
    return bool(old["input_shape"] == new["input_shape"] and old["output_shape"] != new["output_shape"])


def _became(row: Row, old: Mapping[str, Row]) -> str:
    """The change of a module or operator: new, gone, renamed or another; "" if another change explains it."""
    change = row.get("change") or ""
    if change == "added" and row.fqn in old:  # what had the name before is called otherwise now
        return f"replaced by a {row.get('type')}"
    if change.startswith("renamed: "):
        # An operator has another number since others before it are new or gone: those are the cause.
        return "" if operator_owner(row.fqn) is not None else f"renamed to {change.removeprefix('renamed: ')}"
    return change if change in ("", "added", "removed") else f"changed: {change}"


def _unmeasured(row: Row) -> str:
    reason = f": {row['reason']}" if row.get("reason") else ""
    return f"{'is no longer measured' if row['only'] == 'A' else 'is measured now'}{reason}"


def _lost(rows: Sequence[Row], causes: _Causes) -> None:
    """Gradients that only one run has: the first on each side, unless its module is known to have changed."""
    for side, text in (("A", "no longer gets a gradient"), ("B", "now gets a gradient")):
        lost = [row for row in rows if row.get("only") == side and row.fqn.rpartition(".")[0] not in causes.texts]
        if lost:
            reason = f" ({lost[0]['reason']})" if lost[0].get("reason") else ""
            others = f", nor {'do' if lost[2:] else 'does'} {len(lost) - 1} more" if lost[1:] else ""
            others = others if side == "A" else others.replace("nor do", "as do").replace("nor does", "as does")
            causes.add(lost[0].fqn, f"{text}{reason}{others}")


def _statistics(rows: Sequence[Row], what: str, text: str, causes: _Causes) -> None:
    """Statistics that moved, and modules that are no longer measured and were not reported before."""
    for row in rows:
        if row.get("only") and what == "activation" and row.fqn not in causes.texts:
            causes.add(row.fqn, _unmeasured(row))
    causes.first_of([row for row in rows if row.get("beyond") and not row.get("only")], what, f"{text} changed: ")
