"""Makes one job per model from the command line and the configuration file. Options override the file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from hookcli.checks.measurements import parse_expected
from hookcli.checks.selection import (
    SETTINGS,
    CheckPlan,
    choose,
    chosen_by_name,
    make_plan,
    parse_thresholds,
    require_judgeable,
)
from hookcli.commands.added_options import ADDED, BUDGETS
from hookcli.commands.config import Config
from hookcli.commands.option_fields import check_choice, flag
from hookcli.commands.options import SHARED, Options
from hookcli.commands.run_options import overruled
from hookcli.errors import HookcliError, UsageError
from hookcli.sources.misnamed import unknown_name
from hookcli.table import SEVERITIES

_KEPT = "HK024"  # max-activation-memory
_BUDGETS = ("max_params", "max_macs", "max_activation_memory", *BUDGETS, "max_graph_breaks")
_DEFAULTS: dict[str, object] = {"repeat": 1, "split_batch": False, "loss": None, "max_activation_memory": None}
_DEFAULTS |= {"save": None, "against": None, "compile": None}
# Pairs of settings that exclude each other, with the reason.
_CONTRADICTIONS = (
    ("meta", "repeat", "without values there is nothing to compare"),
    ("meta", "split_batch", "without values there is nothing to compare"),
    ("meta", "compile", "nothing is compiled for the meta device"),
    ("meta", "save", "a baseline holds values, and the meta device has none"),
    ("meta", "against", "a baseline holds values, and the meta device has none"),
    ("backward", "loss", "nothing is differentiated without a backward pass"),
    ("backward", "max_activation_memory", "the limit is on memory kept for the backward pass"),
)


@dataclass(frozen=True)
class Job:
    """A model to check; `written` maps options that the configuration file sets to the section that sets them."""

    spec: str
    options: Options
    settings: Mapping[str, Any]
    plan: CheckPlan
    written: Mapping[str, str] = field(default_factory=dict)

    def located(self, error: HookcliError) -> HookcliError:
        """Return the error; if its option was set in the configuration file, name the section instead."""
        return _located(error, self.written)


def make_jobs(
    models: Sequence[str], options: Options, own: Mapping[str, Any], typed: Collection[str], config: Config
) -> list[Job]:
    """Make a job for each model on the command line, else for each model in the file.

    `own` are the command's settings, `typed` the names of settings given on the command line. A model's settings in the
    file apply even if the model is named on the command line. Raises UsageError if there is no model, and for wrong or
    contradictory settings, naming file and key if they come from the file.
    """
    _check(config.place, config.settings)
    specs = models or [*config.models]
    if not specs:
        raise UsageError(
            "no model to check: give one, as in `hookcli check net.py:Net`, or list models in pyproject.toml, "
            "as in [tool.hookcli] models = ['net.py:Net']"
        )
    if sizes := next((spec for spec in specs if spec.isdecimal()), ""):  # before the first model runs on a part of them
        raise UsageError(unknown_name(sizes))
    return [_job(spec, options, own, typed, config) for spec in dict.fromkeys(specs)]


def _job(spec: str, options: Options, own: Mapping[str, Any], typed: Collection[str], config: Config) -> Job:
    in_model = config.models.get(spec, {})
    place = f"{config.place} models {spec!r}"
    _check(place, in_model)
    written = {**config.settings, **in_model}
    ours, theirs = _limits("", own), {**_limits(config.place, config.settings), **_limits(place, in_model)}
    limits = {**theirs, **ours}
    settings = {**own, **{k: v for k, v in written.items() if k in own and k not in typed}, "thresholds": limits}
    settings["max_activation_memory"] = limits.get(_KEPT)  # it may have been given as a threshold
    kept = {"max_activation_memory"}
    in_file, on_line = {*written, *(kept if _KEPT in theirs else ())}, {*typed, *(kept if _KEPT in ours else ())}
    _settle(settings, in_file, on_line, place if in_model else config.place)
    if settings["max_activation_memory"] is None:
        limits.pop(_KEPT, None)
    selecting = place if "select" in in_model else config.place
    _overrule(settings, in_file, on_line, selecting)
    if "select" in in_file - on_line:
        with _in_file(selecting, "select"):
            require_judgeable(settings, not settings["meta"])
    changed = {k: v for k, v in written.items() if k in SHARED and k not in {*typed, *overruled(typed)}}
    places = {key.replace("_", "-"): place if key in in_model else config.place for key in written if key not in typed}
    options = replace(options, **changed)
    planned = {name: getattr(options, name) if name in SHARED else settings[name] for name in SETTINGS}
    try:
        plan = make_plan(**planned, keep=bool(settings["save"]), values=not settings["meta"], typed=True)
    except UsageError as error:
        raise _located(error, places) from error
    return Job(spec, options, settings, plan, places)


def _located(error: HookcliError, places: Mapping[str, str]) -> HookcliError:
    """The error, beginning with the section that sets its option, if the configuration file does."""
    if not isinstance(error, UsageError) or error.option not in places:
        return error
    message = str(error)
    for name in places:
        message = message.replace(f"--{name} ", f"{name} ").replace(f"--{name}:", f"{name}:")
    return UsageError(f"{places[error.option]}: {message}")


def _limits(place: str, settings: Mapping[str, Any]) -> dict[str, float]:
    budgets = {name.replace("_", "-"): settings[name] for name in _BUDGETS if settings.get(name) is not None}
    limits = parse_thresholds(settings.get("thresholds") or {}, f"{place} thresholds: " if place else "--threshold ")
    for name, figure in budgets.items():
        limit = parse_thresholds({name: figure}, f"{place} " if place else "--")
        if limit.keys() & limits.keys():
            raise UsageError(f"{place + ': ' if place else ''}{name} is given twice, once as a threshold")
        limits |= limit
    return limits


def _overrule(settings: dict[str, Any], written: Collection[str], typed: Collection[str], place: str) -> None:
    """Let --select and --ignore on the command line override `ignore` and `select` in the file."""
    for one, other in (("select", "ignore"), ("ignore", "select")):
        if one not in typed or other not in written or other in typed:
            continue
        named = chosen_by_name(settings[one], f"--{one}")
        left = [word for word in settings[other] if not chosen_by_name([word]) & named]
        if other == "select" and not left:
            raise UsageError(f"no check is left to run: --ignore excludes all checks that {place} select names")
        settings[other] = left


def _settle(settings: dict[str, object], written: Collection[str], typed: Collection[str], place: str) -> None:
    """Resolve contradictory settings: one on the command line wins; two from the same place are an error."""
    for one, other, why in _CONTRADICTIONS:
        stops = settings[one] if one == "meta" else not settings[one]
        if not stops or settings[other] == _DEFAULTS[other]:
            continue
        from_file = [name in written and name not in typed for name in (one, other)]
        if from_file == [True, False]:
            settings[one] = one == "backward"
        elif from_file == [False, True]:
            settings[other] = _DEFAULTS[other]
        else:
            where, dashes, off = (
                (f"{place}: ", "", "backward = false") if all(from_file) else ("", "--", "--no-backward")
            )
            first = off if one == "backward" else f"{dashes}{one}"
            raise UsageError(f"{where}{first} and {dashes}{other.replace('_', '-')}: {why}; leave one out")


def _check(place: str, written: Mapping[str, Any]) -> None:
    """Raise UsageError, naming place and key, for an unknown check, expectation or severity."""
    select, ignore = written.get("select", ()), written.get("ignore", ())
    limits = _limits(place, written)
    if select or ignore:
        with _in_file(place, ""):
            choose(select, ignore, limits, typed=False)
    for text in written.get("expect_output", ()):
        with _in_file(place, "expect-output"):
            parse_expected(text, "")
    words = {flag(one.name)[2:]: one.metadata["words"] for one in ADDED if one.metadata.get("words")}
    for key, allowed in (words | {"fail-on": SEVERITIES}).items():
        with _in_file(place, key):
            check_choice(key, written.get(key.replace("-", "_")), allowed)


@contextmanager
def _in_file(place: str, key: str) -> Iterator[None]:
    """Have a UsageError begin with the place and key of the file."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{place} {key}".rstrip() + f": {error}") from error
