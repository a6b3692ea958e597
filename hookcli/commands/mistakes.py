"""Messages for command lines that Typer can't parse: what was typed, and what would be right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hookcli.commands.help_pages import argument_name, usage
from hookcli.commands.typer_classes import TYPED
from hookcli.errors import UsageError, shortened, unknown

_NO_COMMAND = re.compile(r"No such command '(.*?)'", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", re.DOTALL)
_WHOLE, _ANY = "a whole number", "a number"
_KINDS = {"int_parsing": _WHOLE, "int_parsing_size": _WHOLE, "int_from_float": _WHOLE, "float_parsing": _ANY}
_KINDS |= {"finite_number": "a finite number", "bool_parsing": "true or false"}
_OF_OPTION = re.compile("(?:[AB]: )?--")
_EXAMPLE = "for example"
_TOLD = (_EXAMPLE, "choose from", "name the model", "record each")  # what to type
_LIMITS = {"ge": "from {}", "gt": "above {}", "le": "up to {}", "lt": "below {}"}


def mistake(error: Any, commands: Iterable[str] = ()) -> str:
    """The message for an error of Typer's; `commands` are the names that a wrong one is compared with."""
    context = getattr(error, "ctx", None)
    help_page = f"`{context.command_path if context else 'hookcli'} --help` lists all"
    kind = type(error).__name__
    if kind == "NoSuchOption":
        details = getattr(getattr(context, "command", None), "details", None)
        if details and error.option_name in details.elsewhere:
            return str(details.elsewhere[error.option_name])
        names = [name for one in _parameters(context) for name in (*one.opts, *one.secondary_opts)]
        return unknown("option", error.option_name, [name for name in names if name.startswith("--")], see=help_page)
    if kind == "BadOptionUsage":
        return _misused(error, context)
    if kind == "MissingParameter":
        return f"{_named(error.param)} is missing; {_usage(context)}"
    if kind == "BadParameter" and error.param is not None:
        return _bad_value(error)
    if match := _NO_COMMAND.match(error.message):
        return unknown("command", match[1], list(dict.fromkeys(commands)), see=help_page)
    if match := _EXTRA.match(error.message):
        return f"unexpected argument {shortened(match[1])!r}; {_usage(context)}"
    message = error.format_message().rstrip(".")
    return f"{message[:1].lower()}{message[1:]} ({help_page})"


def _parameters(context: Any) -> Sequence[Any]:
    return context.command.get_params(context) if context else ()


def _usage(context: Any) -> str:
    """The usage line, and a command that runs."""
    details = getattr(context.command, "details", None)
    example = details.example(context.meta.get(TYPED, ())) if details and details.example else ""
    return f"usage: {context.command_path} {usage(context)}" + (f"; {_EXAMPLE}: {example}" if example else "")


@contextmanager
def ending_in_example(example: str) -> Iterator[None]:
    """Errors on what is named in place of a model or file, not those on an option, end with a command that runs."""
    try:
        yield
    except UsageError as error:
        message = str(error)
        if not (error.option or _OF_OPTION.match(message) or any(word in message for word in _TOLD)):
            error.args = (f"{message}; {_EXAMPLE}: {example}",)
        raise


def _named(parameter: Any) -> str:
    """A parameter as it is typed: --batch-size, or MODEL."""
    if parameter.param_type_name == "argument":
        return argument_name(parameter).removesuffix("...")
    return str(max(parameter.opts, key=len))


def _misused(error: Any, context: Any) -> str:
    name = error.option_name
    owner = next((one for one in _parameters(context) if name in (*one.opts, *one.secondary_opts)), None)
    if "does not take" in error.message:
        words = context.meta.get(TYPED, ()) if context else ()
        typed = next((word for word in words if word.startswith(f"{name}=")), name)
        return f"{typed}: takes no value; give {name} alone"
    metavar = getattr(owner, "metavar", None) or "VALUE"
    return f"{name}: a value is missing; give {name} {metavar}"


def _bad_value(error: Any) -> str:
    name = _named(error.param)
    details: list[Any] = getattr(error.__cause__, "errors", list)()
    if not details:
        return f"{name}: {error.message}"
    wrong = details[0]
    bounds = {key: bound for key, bound in wrong.get("ctx", {}).items() if key in _LIMITS}
    plain = {key: int(bound) if bound == int(bound) else bound for key, bound in bounds.items()}  # 0, not 0.0
    limits = [text.format(plain[key]) for key, text in _LIMITS.items() if key in plain]
    wanted = _KINDS.get(wrong["type"]) or (" ".join([_ANY, *limits]) if limits else "")
    return f"{name} {shortened(str(wrong['input']))!r}: {f'give {wanted}' if wanted else wrong['msg']}"
