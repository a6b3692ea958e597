"""Messages for command lines that Typer can't parse: what was typed, and what would be right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hookcli.commands.help_pages import argument_name, usage
from hookcli.commands.meant_commands import meant_command
from hookcli.commands.typer_classes import TYPED
from hookcli.errors import UsageError, shortened, unknown
from hookcli.sources.misnamed import meant_by
from hookcli.tensors.files.opening import holds_tensors

_NO_COMMAND = re.compile(r"No such command '(.*?)'", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", re.DOTALL)
_WHOLE, _ANY = "a whole number", "a number"
_KINDS = {"int_parsing": _WHOLE, "int_parsing_size": _WHOLE, "int_from_float": _WHOLE, "float_parsing": _ANY}
_KINDS |= {"finite_number": "a finite number", "bool_parsing": "true or false"}
_OF_OPTION = re.compile("(?:[AB]: )?--")
_EXAMPLE = "for example"
_TOLD = (_EXAMPLE, "choose from", "name the model", "record each", "is empty", "damaged", "as the model")
_INSTEAD = {
    **dict.fromkeys(("--json", "--as-json"), "--format json"),
    "--csv": "--format csv",
    "--markdown": "--format markdown",
    **dict.fromkeys(("--layer", "--layers", "--module", "--name", "--filter"), "--match"),
    **dict.fromkeys(("--largest", "--descending"), "--sort -COLUMN"),
    "--pretrained": "--weights DEFAULT",
    **dict.fromkeys(("--checkpoint", "--ckpt", "--state-dict"), "--weights"),
    **dict.fromkeys(("--shape", "--input-shape", "--input-size"), "--input"),
    **dict.fromkeys(("--seq-len", "--seq-length", "--sequence-length", "--max-length"), "--input Nx{}:int64"),
    **dict.fromkeys(("--batch", "--bs"), "--batch-size"),
    **dict.fromkeys(("--fp16", "--half"), "--dtype float16"),
    "--bf16": "--dtype bfloat16",
    **dict.fromkeys(("--cuda", "--gpu"), "--device cuda"),
}
"""Options of other tools, and hookcli's for the same; {} is the number that was typed."""
_SIZES = re.compile(r"(?<!\S)(--input|-i)[ =](\d+(?: \d+)+)(?!\S)")
_LIMITS = {"ge": "from {}", "gt": "above {}", "le": "up to {}", "lt": "below {}"}


def mistake(error: Any, commands: Iterable[str] = ()) -> str:
    """The message for an error of Typer's; `commands` are the names that a wrong one is compared with."""
    context: Any = getattr(error, "ctx", None)
    asked = f"{context.command_path} --help all" if context and context.parent else "hookcli --help"
    help_page = f"`{asked}` lists all"
    kind = type(error).__name__
    if kind == "NoSuchOption":
        return _unknown_option(error.option_name, context, help_page)
    if kind == "BadOptionUsage":
        return _misused(error, context)
    if kind == "MissingParameter":
        return f"{_named(error.param)} is missing; {_usage(context)}"
    if kind == "BadParameter" and error.param is not None:
        return _bad_value(error)
    if match := _NO_COMMAND.match(error.message):
        names = list(dict.fromkeys(commands))
        typed = context.meta[TYPED]
        meant = meant_command(typed[typed.index(match[1]) :], names) if match[1] in typed else ""
        guess = f"unknown command {shortened(match[1])!r}; did you mean `{meant}`?"
        return guess if meant else unknown("command", match[1], names, see=help_page)
    if match := _EXTRA.match(error.message):
        if holds_tensors(match[1]) and (meant := meant_by(match[1])):
            return f"unexpected argument: {meant}"
        if sizes := _SIZES.search(" ".join(context.meta.get(TYPED, ()))):
            return f"{sizes[0]}: join the sizes by x: {sizes[1]} {sizes[2].replace(' ', 'x')}"
        return f"unexpected argument {shortened(match[1])!r}; {_usage(context)}"
    message = error.format_message().rstrip(".")
    return f"{message[:1].lower()}{message[1:]} ({help_page})"


def _unknown_option(option: str, context: Any, help_page: str) -> str:
    details = getattr(getattr(context, "command", None), "details", None)
    if details and option in details.elsewhere:
        return str(details.elsewhere[option])
    names = [name for one in _parameters(context) for name in (*one.opts, *one.secondary_opts)]
    instead = (details.instead if details else {}).get(option) or _INSTEAD.get(option, "")
    instead = instead.replace("{}", number_after(option, context))
    if instead.partition(" ")[0] in names:
        return f"unknown option {option!r}; did you mean {instead}?"
    return unknown("option", option, [name for name in names if name.startswith("--")], see=help_page)


def number_after(option: str, context: Any) -> str:
    """The whole number that was typed for an option; LENGTH if there is none."""
    words = " ".join(context.meta.get(TYPED, ()) if context else ())
    typed = re.search(rf"(?<!\S){re.escape(option)}[ =](\d+)(?!\S)", words)
    return typed[1] if typed else "LENGTH"


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
        return f"{typed}: takes no value; give {'--help all' if typed == '--help=all' else f'{name} alone'}"
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
