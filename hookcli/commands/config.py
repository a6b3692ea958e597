"""Reads `[tool.hookcli]` of a pyproject.toml, so that plain `hookcli check` runs all checks of a repository."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from hookcli.commands.added_options import ADDED, BUDGETS
from hookcli.commands.option_fields import GREATEST_TOLERANCE, MOST_RUNS, flag
from hookcli.commands.options import Options
from hookcli.errors import UsageError, in_brief, shortened, unknown
from hookcli.hooks.option_values import FURTHER_PROBES
from hookcli.system.files import content, exists
from hookcli.table.meta import WEIGHTS

DEFAULT_FILE = "pyproject.toml"
_GREATEST = 2**63
_LARGEST = 2**24  # bytes


@dataclass(frozen=True, slots=True)
class _Kind:
    """The kind of a key's value: advice for a value of another kind, and the test for it."""

    advice: str
    fits: Callable[[Any], bool]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _GREATEST


def _is_whole(value: object, least: int, most: float) -> bool:
    return _is_number(value) and isinstance(value, int) and least <= value <= most


def _count(most: int) -> _Kind:
    return _Kind(f"give a whole number from 1 to {most:,}", lambda value: _is_whole(value, 1, most))


_MOST: dict[str, Any] = {one.name: one.metadata.get("max") for one in fields(Options)}
_TEXT = _Kind("give text in quotes, not empty", lambda value: isinstance(value, str) and value != "")
_TEXTS = _Kind(
    "give text in quotes, or a list of texts",
    lambda value: all(isinstance(item, str) for item in (value if isinstance(value, list) else [value])),
)
_FLAG = _Kind("give true or false", lambda value: isinstance(value, bool))
_TOLERANCE = _Kind(
    f"give a number from 0 to {GREATEST_TOLERANCE:,.0f}",
    lambda value: _is_number(value) and 0 <= value <= GREATEST_TOLERANCE,
)
_FIGURE = _Kind("give a number, or text such as '25M'", lambda value: _is_number(value) or isinstance(value, str))


_BY_DEFAULT = {bool: _FLAG, type(MISSING): _TEXTS}
"""The kinds of options by the type of their default; lists have a factory, and no default. Other options are texts."""
_KEYS = {
    WEIGHTS: _TEXT,
    **dict.fromkeys(("task", "fill", "device", "dtype", "loss", "fail-on", "against"), _TEXT),
    **dict.fromkeys(("data", "tokenizer", "ops", "compile"), _TEXT),
    **dict.fromkeys(("image", "text", "input-file"), _TEXTS),
    "batches": _Kind(
        "give a whole number from 1, or 'all'", lambda value: value == "all" or _is_whole(value, 1, 10**9 - 1)
    ),
    **dict.fromkeys(("input", "arg", "select", "ignore", "expect-output"), _TEXTS),
    **dict.fromkeys(("strict", "train", "backward", "split-batch", "meta", "emulate-casts"), _FLAG),
    **dict.fromkeys(FURTHER_PROBES, _FLAG),
    "batch-size": _count(_MOST["batch_size"]),
    "threads": _count(_MOST["threads"]),
    "repeat": _count(MOST_RUNS),
    "seed": _Kind("give a whole number from 0 to 2**63 - 1", lambda value: _is_whole(value, 0, _GREATEST)),
    **dict.fromkeys(("max-params", "max-macs", "max-activation-memory"), _FIGURE),
    **{
        flag(one.name)[2:]: _FIGURE if one.name in BUDGETS else _BY_DEFAULT.get(type(one.default), _TEXT)
        for one in ADDED
    },
    "max-graph-breaks": _FIGURE,
    **dict.fromkeys(("rtol", "atol"), _TOLERANCE),
    "thresholds": _Kind(
        "give a table of checks and figures, as in {HK012 = 1e-5}",
        lambda value: isinstance(value, Mapping) and all(map(_FIGURE.fits, value.values())),
    ),
}
# Options that have no key of their name, and what to write instead.
_MEANT = {
    "eval": "train = false",
    "mode": "train = true, or train = false",
    "no-backward": "backward = false",
    "no-strict": "strict = false",
    "threshold": "thresholds = {HK012 = 1e-5}",
}
# Keys that apply to all models of a run.
_WHOLE = ("fail-on", "threads")


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of a file by the names of the command's parameters, for all models and for each model."""

    place: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


def read_config(named: str | None) -> Config:
    """Read the named file, else the working directory's pyproject.toml if it has a section [tool.hookcli].

    Raises UsageError, naming file and key, for an unreadable file, an unknown key or a value of the wrong type.
    """
    path = Path(named or DEFAULT_FILE)
    if not exists(path):
        if named:
            raise UsageError(f"--config {shortened(named)}: no such file")
        return Config(str(path))
    if path.is_dir():
        raise UsageError(f"{path}: is a folder, not a file with a section [tool.hookcli]")
    try:
        document = tomllib.loads(content(path, _LARGEST).decode("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: can't be read as TOML: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # errors of TOML and UTF-8 are ValueErrors
        raise UsageError(f"{path}: can't be read as TOML: {in_brief(error).partition(': ')[2]}") from error
    tools = document.get("tool", {})
    if not isinstance(tools, Mapping):
        raise UsageError(f"{path}: tool = {_shown(tools)} is not a section, so [tool.hookcli] can't exist")
    section = tools.get("hookcli")
    if section is None:
        if named:
            raise UsageError(f"--config {named}: has no section [tool.hookcli]")
        return Config(str(path))
    return _parsed(f"{path} [tool.hookcli]", section)


def _parsed(place: str, section: object) -> Config:
    if not isinstance(section, Mapping):
        raise UsageError(f"{place}: is not a section")
    if "model" in section and "models" in section:
        raise UsageError(f"{place}: has both model and models: leave one out")
    models = section.get("models", section.get("model", []))
    settings = {key: value for key, value in section.items() if key not in ("model", "models")}
    entries = [models] if isinstance(models, (str, Mapping)) else models
    if not isinstance(entries, Sequence):
        raise UsageError(f"{place} models = {_shown(models)}: give a list of models")
    named = [_model(place, entry) for entry in entries]
    own = dict(named)
    if len(own) < len(named):
        [(twice, _)] = Counter(spec for spec, _ in named).most_common(1)
        raise UsageError(f"{place} models: {twice!r} is listed twice")
    return Config(place, _settings(place, settings, ("model", "models")), own)


def _model(place: str, entry: Any) -> tuple[str, dict[str, object]]:
    """Read one entry of `models`: a name, or a table with the name in `model` and the model's settings."""
    if isinstance(entry, str):
        return entry, {}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("model"), str):
        raise UsageError(
            f"{place} models: {_shown(entry)} is neither a name nor a table with one, as in {{model = 'resnet18'}}"
        )
    place = f"{place} models {entry['model']!r}"
    for key in _WHOLE:
        if key in entry:
            raise UsageError(f"{place} {key}: applies to all models; move it to [tool.hookcli]")
    return entry["model"], _settings(place, {key: value for key, value in entry.items() if key != "model"}, ("model",))


def _settings(place: str, values: Mapping[str, object], more: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, value in values.items():
        if key in _MEANT:
            raise UsageError(f"{place}: unknown key {key!r}: write {_MEANT[key]}")
        if key not in _KEYS:
            see = "keys are the options of `hookcli check` (see its --help all)"
            raise UsageError(f"{place}: " + unknown("key", key, (*_KEYS, *more), see=see))
        kind = _KEYS[key]
        if not kind.fits(value):
            raise UsageError(f"{place} {key} = {_shown(value)}: {kind.advice}")
        settings[key.replace("-", "_")] = [value] if kind is _TEXTS and isinstance(value, str) else value
    return settings


def _shown(value: object) -> str:
    """Return a value as text for a message, shortened; its type if the integer is too long or the nesting too deep."""
    try:
        return shortened(repr(value), 60)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"
