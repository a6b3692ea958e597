"""What `[tool.hookcli]` of a pyproject.toml says, so that plain `hookcli check` does a repository's whole job."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookcli.errors import UsageError, in_brief, shortened, unknown
from hookcli.system.files import exists

DEFAULT_FILE = "pyproject.toml"
_TEXT, _TEXTS, _FLAG, _COUNT, _NUMBER = "text", "texts", "flag", "count", "number"
_FIGURE, _FIGURES = "figure", "figures"
_SEED = "seed"
_GREATEST = 2**63
_KEYS = {
    **dict.fromkeys(("weights", "fill", "device", "dtype", "loss", "fail-on", "against"), _TEXT),
    **dict.fromkeys(("input", "arg", "select", "ignore", "expect-output"), _TEXTS),
    **dict.fromkeys(("strict", "train", "backward", "split-batch", "meta"), _FLAG),
    **dict.fromkeys(("batch-size", "threads", "repeat"), _COUNT),
    "seed": _SEED,
    **dict.fromkeys(("max-params", "max-macs", "max-activation-memory"), _FIGURE),
    **dict.fromkeys(("rtol", "atol"), _NUMBER),
    "thresholds": _FIGURES,
}
# Options without a key of their name, and what one may call them.
_MEANT = {
    "eval": "train = false",
    "mode": "train = true, or train = false",
    "no-backward": "backward = false",
    "no-strict": "strict = false",
    "threshold": "thresholds = {HK012 = 1e-5}",
}
# What holds for the whole command, whatever the model.
_WHOLE = ("fail-on", "threads")
_GIVE = {
    _TEXT: "give text in quotes",
    _TEXTS: "give text in quotes, or a list of such",
    _FLAG: "give true or false",
    _COUNT: "give a whole number from 1 to 2**63 - 1",
    _SEED: "give a whole number from 0 to 2**63 - 1",
    _NUMBER: "give a number from 0",
    _FIGURE: "give a number, or text such as '25M'",
    _FIGURES: "give a table of checks and figures, as in {HK012 = 1e-5}",
}


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of a file, by the names that the command's parameters have, and those of each model."""

    place: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read_config(given: str | None) -> Config:
    """Read the file that was given, else the pyproject.toml of the working directory if it has such a section.

    Raises UsageError, naming file and key, for what can't be read, an unknown key or a value of a wrong kind.
    """
    path = Path(given or DEFAULT_FILE)
    if not exists(path):
        if given:
            raise UsageError(f"--config {shortened(given)}: no such file")
        return Config(str(path))
    if path.is_dir():
        raise UsageError(f"{path}: is a folder, not a file with a section [tool.hookcli]")
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # TOML's own errors are ValueErrors, as are UTF-8's
        raise UsageError(f"{path}: can't be read as TOML: {in_brief(error).partition(': ')[2]}") from error
    tools = document.get("tool", {})
    if not isinstance(tools, Mapping):
        raise UsageError(f"{path}: tool = {_shown(tools)} is no section, so that there can be no [tool.hookcli]")
    section = tools.get("hookcli")
    if section is None:
        if given:
            raise UsageError(f"--config {given}: has no section [tool.hookcli]")
        return Config(str(path))
    return _parsed(f"{path} [tool.hookcli]", section)


def _parsed(place: str, section: Any) -> Config:
    if not isinstance(section, Mapping):
        raise UsageError(f"{place}: is no section")
    if "model" in section and "models" in section:
        raise UsageError(f"{place}: has both model and models: leave one out")
    models = section.get("models", section.get("model", []))
    own = {key: value for key, value in section.items() if key not in ("model", "models")}
    entries = [models] if isinstance(models, (str, Mapping)) else models
    if not isinstance(entries, Sequence):
        raise UsageError(f"{place} models = {_shown(models)}: give a list of models")
    named = [_model(place, entry) for entry in entries]
    specs = [spec for spec, _ in named]
    if twice := next((spec for spec in specs if specs.count(spec) > 1), None):
        raise UsageError(f"{place} models: {twice!r} is there twice")
    return Config(place, _settings(place, own, ("model", "models")), dict(named))


def _model(place: str, entry: Any) -> tuple[str, dict[str, Any]]:
    """A model's name, or a table with its name in `model` and settings of its own."""
    if isinstance(entry, str):
        return entry, {}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("model"), str):
        raise UsageError(
            f"{place} models: {_shown(entry)} is neither a name nor a table with one, as in {{model = 'resnet18'}}"
        )
    place = f"{place} models {entry['model']!r}"
    for key in _WHOLE:
        if key in entry:
            raise UsageError(f"{place} {key}: holds for all models: put it into [tool.hookcli] itself")
    return entry["model"], _settings(place, {key: value for key, value in entry.items() if key != "model"}, ("model",))


def _settings(place: str, given: Mapping[str, Any], more: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, value in given.items():
        if key in _MEANT:
            raise UsageError(f"{place}: unknown key {key!r}: write {_MEANT[key]}")
        if key not in _KEYS:
            raise UsageError(f"{place}: " + unknown("key", key, (*_KEYS, *more)))
        kind = _KEYS[key]
        if not _is_of(kind, value):
            raise UsageError(f"{place} {key} = {_shown(value)}: {_GIVE[kind]}")
        settings[key.replace("-", "_")] = [value] if kind == _TEXTS and isinstance(value, str) else value
    return settings


def _shown(value: Any) -> str:
    """A value in a message, shortened; of an integer with more digits than Python writes, and of what lies too deep,
    its kind."""
    try:
        return shortened(repr(value), 60)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"


def _is_of(kind: str, value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _GREATEST
    return {
        _TEXT: isinstance(value, str),
        _TEXTS: isinstance(value, str) or (isinstance(value, list) and all(isinstance(v, str) for v in value)),
        _FLAG: isinstance(value, bool),
        _COUNT: is_number and isinstance(value, int) and 1 <= value < _GREATEST,
        _SEED: is_number and isinstance(value, int) and 0 <= value < _GREATEST,
        _NUMBER: is_number and 0 <= value < math.inf,
        _FIGURE: is_number or isinstance(value, str),
        _FIGURES: isinstance(value, Mapping) and all(_is_of(_FIGURE, v) for v in value.values()),
    }[kind]
