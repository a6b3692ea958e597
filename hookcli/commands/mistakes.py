"""Messages for command lines that Typer can't parse: what was typed, and what would be right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from hookcli.commands.help_pages import argument_name, usage
from hookcli.commands.typer_classes import TYPED
from hookcli.errors import shortened, unknown

_NO_COMMAND = re.compile(r"No such command '(.*?)'", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", re.DOTALL)
_WHOLE, _ANY = "a whole number", "a number"
_KINDS = {"int_parsing": _WHOLE, "int_parsing_size": _WHOLE, "int_from_float": _WHOLE, "float_parsing": _ANY}
_KINDS |= {"finite_number": "a finite number", "bool_parsing": "true or false"}
_LIMITS = {"ge": "from {}", "gt": "above {}", "le": "up to {}", "lt": "below {}"}


def mistake(error: Any, commands: Iterable[str] = ()) -> str:
    """The message for an error of Typer's; `commands` are the names that a wrong one is compared with."""
    context = getattr(error, "ctx", None)
    help_page = f"`{context.command_path if context else 'hookcli'} --help` lists all"
    kind = type(error).__name__
    if kind == "NoSuchOption":
        return unknown("option", error.option_name, _options(context), see=help_page)
    if kind == "BadOptionUsage":
        return _misused(error, context)
    if kind == "MissingParameter":
        return f"{_named(error.param)} is missing; {_usage(context)}"
    if kind == "BadParameter" and error.param is not None:
        return _bad_value(error)
    if found := _NO_COMMAND.match(error.message):
        return unknown("command", found[1], list(dict.fromkeys(commands)), see=help_page)
    if found := _EXTRA.match(error.message):
        return f"unexpected argument {shortened(found[1])!r}; {_usage(context)}"
    message = error.format_message().rstrip(".")
    return f"{message[:1].lower()}{message[1:]} ({help_page})"


def _options(context: Any) -> list[str]:
    parameters = context.command.get_params(context) if context else []
    return [name for one in parameters for name in (*one.opts, *one.secondary_opts) if name.startswith("--")]


def _usage(context: Any) -> str:
    return f"usage: {context.command_path} {usage(context)}"


def _named(parameter: Any) -> str:
    """A parameter as it is typed: --batch-size, or MODEL."""
    if parameter.param_type_name == "argument":
        return argument_name(parameter).removesuffix("...")
    return str(max(parameter.opts, key=len))


def _misused(error: Any, context: Any) -> str:
    name = error.option_name
    parameters = context.command.get_params(context) if context else []
    owner = next((one for one in parameters if name in (*one.opts, *one.secondary_opts)), None)
    if "does not take" in error.message:
        typed = next((word for word in _typed(context) if word.startswith(f"{name}=")), name)
        return f"{typed}: takes no value; give {name} alone"
    metavar = getattr(owner, "metavar", None) or "VALUE"
    return f"{name}: a value is missing; give {name} {metavar}"


def _typed(context: Any) -> Sequence[str]:
    return context.meta.get(TYPED, ()) if context else ()


def _plain(limit: float) -> float:
    """The limit as people write it: 0, not 0.0."""
    return int(limit) if limit == int(limit) else limit


def _bad_value(error: Any) -> str:
    name = _named(error.param)
    details: list[Any] = getattr(error.__cause__, "errors", list)()
    if not details:
        return f"{name}: {error.message}"
    wrong = details[0]
    limits = [text.format(_plain(wrong["ctx"][key])) for key, text in _LIMITS.items() if key in wrong.get("ctx", {})]
    wanted = _KINDS.get(wrong["type"]) or (" ".join([_ANY, *limits]) if limits else "")
    given = shortened(str(wrong["input"]))
    return f"{name} {given!r}: {f'give {wanted}' if wanted else wrong['msg']}"
