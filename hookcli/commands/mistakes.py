"""Messages for command lines that Typer can't parse: what was typed, and what would be right."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from hookcli.commands.help_pages import argument_name, usage
from hookcli.commands.typer_classes import TYPED
from hookcli.errors import UsageError, nearest, shortened, unknown
from hookcli.registry.capability import hint, search_words
from hookcli.sources.identity import source_of
from hookcli.sources.misnamed import meant_by
from hookcli.sources.module_code import code_of
from hookcli.system.files import exists, is_file, nearest_file
from hookcli.tensors.files.opening import SUFFIXES, holds_tensors

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
_OTHER_WORDS = {
    **dict.fromkeys(("summary", "info", "params", "flops"), "shapes {}"),
    **dict.fromkeys(("parameters", "macs"), "shapes {}"),
    **dict.fromkeys(("profile", "time", "timing", "benchmark", "bench"), "shapes {} --time"),
    **dict.fromkeys(("stats", "statistics", "outputs"), "activations {}"),
    **dict.fromkeys(("gradients", "backward"), "grads {}"),
    **dict.fromkeys(("lint", "verify", "validate", "doctor", "debug"), "check {}"),
    "compare": "diff {}",
    **dict.fromkeys(("train", "record", "trace-run", "watch"), "run {}"),
    **dict.fromkeys(("view", "open", "print"), "show {}"),
    **dict.fromkeys(("list", "ls", "zoo"), "models {}"),
    "version": "--version",
}
"""Commands of other tools, and hookcli's for the same, without its name; `{}` for the words that follow."""
_RECORDS = {".jsonl": "record", ".json": "JSON file"}
_SIZES = re.compile(r"(?<!\S)(--input|-i)[ =](\d+(?: \d+)+)(?!\S)")
_ALIKE = 0.8  # of a mistyped name of a model, where the word may be anything
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


def meant_command(words: Sequence[str], commands: Collection[str]) -> str:
    """A command line for words that begin with a script, a record, a file of tensors, a model or "help" in place of a
    command, or "". Of a file that is missing, it is that for the file with the nearest name.
    """
    first, *rest = words
    if first == "help":
        return next((f"hookcli {word} -h" for word in rest if word in commands), "hookcli --help")
    if not exists(first) and (other := command_for_word(first, rest)):
        return other
    if not exists(first) and first.endswith((".py", ".json", ".jsonl", *SUFFIXES)):
        first = nearest_file(first) or first
    if command := is_file(first) and command_for_file(first, rest):
        return command
    source, name = source_of(first)
    if source == "torchvision":
        known = named_models()
        if name not in known and not nearest(name, [*commands]):
            first = next(iter(get_close_matches(name, known, 1, _ALIKE)), name)
        return f"hookcli shapes {shlex.join([first, *rest])}" if first in known else ""
    return f"hookcli shapes {shlex.join(words)}"


def command_for_word(word: str, rest: Sequence[str]) -> str:
    """The command for another tool's name of it, with the rest of a line, or ""."""
    word = word.lower()
    if word in ("nan", "nans", "inf"):  # of a script, while it trains
        search = " ".join(["run", *search_words(), "{}"])
        other = "check {}" if rest and not rest[0].endswith(".py") else search
    else:
        other = hint(f"command {word}") or _OTHER_WORDS.get(word, "")
    if rest and other.startswith("shapes") and is_file(rest[0]) and (command := command_for_file(rest[0], rest[1:])):
        return command
    return f"hookcli {other.format(shlex.join(rest))}".replace("  ", " ").rstrip() if other else ""


def command_for_file(file: str, rest: Sequence[str]) -> str:
    """The command for a record, a script, a module with models or a file of tensors, with the rest of a line, or ""."""
    if file.endswith((".jsonl", ".json")):
        return f"hookcli show {shlex.join([file, *rest])}"
    if code := code_of(file):
        words = ["run", file] if code.runs else ["shapes", code.names[0]]
        return shlex.join(["hookcli", *words, *rest])
    if holds_tensors(file):
        command = hint("command for a file of tensors") or "hookcli shapes MODEL --weights {}"
        return shlex.join([*shlex.split(command.format(shlex.quote(file))), *rest])
    return ""


def require_own_kind(word: str, wanted: str, rest: Sequence[str] = ()) -> None:
    """Raise UsageError for a record, a file of weights or a model in place of what is `wanted`: "script" or "record".

    Its message has the command for it, with the rest of the line.
    """
    kind, command = "", ""
    if not exists(word) and (importable(word) or word in named_models()):
        kind, command = "model", f"hookcli shapes {shlex.join([word, *rest])}"
    elif word.endswith((".jsonl", ".json", *SUFFIXES)) and is_file(word):
        kind = next((name for end, name in _RECORDS.items() if word.endswith(end)), "file of weights")
        command = command_for_file(word, rest)
    if command and kind != wanted and not (wanted == "record" and word.endswith(".json")):
        raise UsageError(f"{shortened(word)!r} is a {kind}, not a {wanted}; did you mean `{command}`?")


def importable(word: str) -> bool:
    """True for a word like net.py:Net, of a file that exists."""
    place, colon, name = word.rpartition(":")
    return bool(colon) and name.isidentifier() and place.endswith(".py") and is_file(place)


def named_models() -> Collection[str]:
    """The names that are models without a source before them."""
    from hookcli.sources.catalog import entries

    return entries()


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
