"""The choice of checks and thresholds, and the plan: checks that are ready to judge, and the runs that they need."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import ne
from typing import Any, TypedDict

from hookcli import registry
from hookcli.checks.base import Check
from hookcli.checks.lost import LostCheck, load_check, make_check
from hookcli.checks.measurements import Expected, parse_expected
from hookcli.diff.baseline import Baselines, read_baselines
from hookcli.diff.tolerance import Tolerance
from hookcli.errors import UsageError, about_option, unknown
from hookcli.hooks.option_values import COMPILE, FURTHER_PROBES, OPS
from hookcli.registry.capability import capabilities

_COUNTS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_PREFIXES = {
    "": {"": 1},
    "count": _COUNTS,
    "bytes": {
        **{f"{name}B": n for name, n in _COUNTS.items()},
        **_BINARY,
        **{name[0]: n for name, n in _BINARY.items()},
        "": 1,
    },
}
_EXAMPLES = {"count": "25M", "bytes": "512MiB"}
_FIGURE = re.compile(r"([-+]?[0-9.]+(?:e[-+]?\d+)?)\s*([a-z]*)", re.IGNORECASE)


def known_checks() -> list[type[Check]]:
    """Every check, sorted by id; a LostCheck for one of another distribution that does not load."""
    return sorted(map(load_check, registry.names("checks")), key=lambda check: check.id)


def find_check(word: str, what: str = "check") -> type[Check]:
    """The check with this id or name. Raises UsageError, which suggests the nearest, or those about the word."""
    checks = known_checks()
    for check in checks:
        if word.upper() == check.id.upper() or word.lower() == check.name:
            return check
    names = [name for check in checks for name in (check.id, check.name)]
    if re.fullmatch("(?i)HK[0-9]{3}", word):  # all numbers look alike: those with one digit wrong are near
        alike = [name for name in names if sum(map(ne, name, word.upper())) == 1 and len(name) == len(word)]
        raise UsageError(unknown(what, word, alike, see=_SEE))

    def about(part: re.Pattern[str]) -> list[str]:
        """The checks whose meaning has the word, else the only one whose explanation has it."""
        explained = [check.name for check in checks if part.search(check.explanation())]
        return [check.name for check in checks if part.search(check.means)] or explained * (len(explained) == 1)

    raise UsageError(unknown(what, word, names, see=_SEE, related=about))


def asked_with(probe: str) -> list[str]:
    """The ids of the checks that need this probe, and run only if they are asked for."""
    return [check.id for check in known_checks() if check.asked_by and probe in check.needs]


@cache
def of_whole_runs() -> Sequence[Check]:
    """The checks of capabilities that judge a whole recorded run, at their default thresholds.

    Those with `reads` judge each model, by the lines of their parts; those that need "record" the record as a whole.
    """
    checks = (load_check(name) for one in capabilities() for name in one.checks)
    return [make_check(check) for check in checks if check.reads or "record" in check.needs]


def choose(
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    thresholds: Mapping[str, float] | None = None,
    asked: Iterable[str] = (),
    *,
    typed: bool = True,
) -> list[Check]:
    """The checks to run, ready to judge.

    `select` and `ignore` hold ids, names or beginnings of ids (`HK01`); without `select`, every check runs that needs
    no option. A check that needs one (`Check.asked_by`) runs if its id is in `asked`, has a threshold, or is selected
    by itself. Raises UsageError for an unknown check, and for one that is both selected and ignored; the message names
    options if they were `typed`, else the settings `select` and `ignore`.
    """
    limits = thresholds or {}
    where = "--" if typed else "check in "
    selected, left_out = _matching(select, f"{where}select"), _matching(ignore, f"{where}ignore")
    chosen, ignored = _ids(selected), _ids(left_out)
    by_name = {*_named(selected).values()}
    for word, name in _named(left_out).items():
        if name in by_name:
            raise UsageError(f"{word} is both selected and ignored: leave one out")
    asked = {*asked, *by_name, *limits}
    made = []
    for check in known_checks():
        wanted = check.id in asked if check.asked_by else not select or check.id in chosen
        if wanted and check.id not in ignored:
            made.append(_made(check, limits.get(check.id), typed))
    if not made:
        dashes = "--" * typed
        raise UsageError(f"no check is left to run: {dashes}ignore excludes all checks that {dashes}select names")
    return made


def _ids(matching: Mapping[str, Sequence[type[Check]]]) -> set[str]:
    return {check.id for checks in matching.values() for check in checks}


def _made(check: type[Check], limit: float | None, typed: bool) -> Check:
    """The check, with this threshold or its default. Raises UsageError if it has neither."""
    if limit is None and check.threshold and check.threshold.default is None:
        asked_by = str(check.asked_by).removeprefix("" if typed else "--")
        raise UsageError(f"{check.id} ({check.name}) has no default: give {asked_by}")
    return make_check(check, limit)


def chosen_by_name(words: Sequence[str], option: str = "--select") -> set[str]:
    """The ids of the checks that an option names individually, rather than by the beginning of their ids."""
    return {*_named(_matching(words, option)).values()}


def parse_thresholds(thresholds: Mapping[str, float | str], where: str = "") -> dict[str, float]:
    """Thresholds by check id. Raises UsageError, which begins with `where` they were given, for wrong ones."""
    limits: dict[str, float] = {}
    for word, figure in thresholds.items():
        try:
            check, limit = parse_threshold(word, figure)
        except UsageError as error:
            raise UsageError(f"{where}{word}={figure}: {error}") from error
        if check in limits:
            raise UsageError(f"{where}{word}={figure}: {check} is given two thresholds")
        limits[check] = limit
    return limits


def parse_threshold(word: str, figure: str | float) -> tuple[str, float]:
    """A check's id, given by id or name, and its threshold. Raises UsageError for a wrong one."""
    check = find_check(word)
    threshold = check.threshold
    if threshold is None:
        raise UsageError(f"{check.id} ({check.name}) has no threshold")
    value = parse_figure(figure, threshold.unit)
    if value is None:
        raise UsageError(f"give a number, such as {_EXAMPLES.get(threshold.unit, threshold.default)}")
    if not threshold.low <= value <= threshold.high:
        most = f"to {threshold.high:g}" if math.isfinite(threshold.high) else "or more"
        raise UsageError(f"out of range; {check.id} ({check.name}) takes {threshold.low:g} {most}")
    return check.id, int(value) if threshold.unit and value.is_integer() else value


def parse_figure(figure: str | float, unit: str = "") -> float | None:
    """Parse 1e-3 and, for counts and bytes, 25M or 512MiB; None for anything else, and if a float can't hold it."""
    text, prefix = match.groups() if (match := _FIGURE.fullmatch(str(figure).strip())) else ("", "")
    try:
        value = float(text) * _PREFIXES[unit][prefix.upper()] if isinstance(figure, (bool, str)) else float(figure)
    except (KeyError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _matching(words: Iterable[str], option: str) -> dict[str, list[type[Check]]]:
    """The checks that each word names. Raises UsageError for a word that names none."""
    matching = {}
    checks = known_checks()
    for word in dict.fromkeys(words):
        prefixed = [check for check in checks if check.id.upper().startswith(word.upper())]
        matching[word] = prefixed if prefixed and word else [find_check(word, option)]
    return matching


def _named(matching: Mapping[str, Sequence[type[Check]]]) -> dict[str, str]:
    """The ids of the checks that words name individually, by the word."""
    alone = {word: checks[0] for word, checks in matching.items() if len(checks) == 1}
    return {word: check.id for word, check in alone.items() if word.lower() in (check.id.lower(), check.name)}


_BREAKS, _MEMORY = "HK043", "max-activation-memory"
_SEE = "`hookcli check --list` lists them"


@dataclass(frozen=True)
class CheckPlan:
    """The checks to run and the runs that they need. `ops`: also judge operators; `compile`: a backend or mode, whose
    programs emulate casts on request."""

    checks: Sequence[Check]
    backward: bool = True
    repeat: int = 1
    expected: Sequence[Expected] = ()
    against: Baselines | None = None
    tolerance: Tolerance = Tolerance()
    keep: bool = False
    ops: str | None = None
    compile: str | None = None
    emulate_casts: bool = False

    @property
    def needs(self) -> set[str]:
        """The fields of Measurements that the checks read, or that a baseline holds, and names of probes."""
        kept = {"settings", "shapes", "activations", *(["grads"] if self.backward else [])}
        read = {name for check in self.checks for name in (*check.needs, *check.takes)}
        return read | (kept if self.keep or self.against else set())


class CheckSettings(TypedDict, total=False):
    """Settings of the checks from `hookcli.check` or the command line; each has a default."""

    select: str | Sequence[str]
    ignore: str | Sequence[str]
    thresholds: Mapping[str, float | str] | None
    expect_output: str | Sequence[str]
    backward: bool
    repeat: int
    split_batch: bool
    against: str | None
    rtol: float | None
    atol: float | None
    ops: str | None
    compile: str | bool | None
    emulate_casts: bool


SETTINGS = (*CheckSettings.__annotations__, *FURTHER_PROBES)
"""The names of all settings: each further probe is one, True if it is added to what is measured."""


def make_plan(*, keep: bool = False, values: bool = True, typed: bool = False, **settings: Any) -> CheckPlan:
    """Make a plan of the settings. Raises UsageError for unknown names and for settings that contradict each other.

    With `keep` everything is measured that a baseline holds; without `values` the model runs on the meta device. Errors
    speak of options where the settings were `typed`.
    """
    select, ignore = _listed(settings.get("select")), _listed(settings.get("ignore"))
    backward, repeat, against = settings.get("backward", True), settings.get("repeat", 1), settings.get("against")
    expected = [parse_expected(text) for text in _listed(settings.get("expect_output"))]
    limits = parse_thresholds(settings.get("thresholds") or {}, "--threshold " if typed else "thresholds: ")
    compiles = settings.get("compile") or None
    if compiles is True:
        compiles = COMPILE[0]
    asked = {"HK021": expected, "HK025": repeat > 1, "HK026": settings.get("split_batch"), "HK027": against is not None}
    asked |= dict.fromkeys(("HK039", "HK040", "HK041", "HK042"), compiles)
    asked |= {name: True for probe in FURTHER_PROBES if settings.get(probe) for name in asked_with(probe)}
    checks = choose(select, ignore, limits, [name for name, wanted in asked.items() if wanted], typed=typed)
    require_judgeable(settings, values)
    _require_runs(checks, limits, settings, typed)
    runs = max(repeat, 2) if any("again" in check.needs for check in checks) else 1
    with about_option("against"):
        baselines = read_baselines(against) if against else None
    tolerance = Tolerance(settings.get("rtol"), settings.get("atol"))
    ops, casts = settings.get("ops"), settings.get("emulate_casts", False)
    return CheckPlan(checks, backward, runs, expected, baselines, tolerance, keep, ops, compiles, casts)


def _require_runs(
    checks: Sequence[Check], limits: Mapping[str, float], settings: Mapping[str, Any], typed: bool
) -> None:
    """Raises UsageError for a limit on a run that is not made, and for operators that checks do not judge."""
    dashes, ops = "--" * typed, settings.get("ops")
    chosen = {check.name: check.id for check in checks}
    if not settings.get("backward", True) and _MEMORY in chosen:
        raise UsageError(f"--{_MEMORY} limits the memory saved for backward: remove --no-backward", option=_MEMORY)
    if not settings.get("compile") and _BREAKS in limits and _BREAKS in chosen.values():
        raise UsageError(f"{dashes}max-graph-breaks limits a compiled run: give {dashes}compile")
    if ops not in (None, OPS[0]):
        raise UsageError(f"{dashes}ops {ops}: checks judge PyTorch's functions; give {OPS[0]}", option="ops")


def _listed(words: str | Sequence[str] | None) -> Sequence[str]:
    return [words] if isinstance(words, str) else words or ()


def require_judgeable(settings: Mapping[str, Any], values: bool) -> None:
    """Raises UsageError if a check that is selected by name lacks what it reads: people would take it for passed."""
    for check in map(find_check, sorted(chosen_by_name(_listed(settings.get("select"))))):
        if issubclass(check, LostCheck):
            raise UsageError(f"{check.id} is selected but can't judge: {check.reason}")
        sources = (
            ("expected", settings.get("expect_output"), f"give {check.asked_by}"),
            ("baseline", settings.get("against"), f"give {check.asked_by}"),
            ("grads", settings.get("backward", True), "remove --no-backward"),
            ("compilation", settings.get("compile"), "give --compile"),
        )
        todo = [advice for need, setting, advice in sources if need in check.needs and not setting]
        todo += ["remove --meta"] if check.values and not values else []
        if todo:
            raise UsageError(f"{check.id} ({check.name}) is selected but can't judge: {' and '.join(todo)}")
