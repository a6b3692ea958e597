"""The command that was meant by a line without one: by another tool's word, a script, a record, weights or a model."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from difflib import get_close_matches

from hookcli.errors import UsageError, nearest, shortened
from hookcli.registry.capability import hint, search_words
from hookcli.sources.identity import source_of
from hookcli.sources.module_code import code_of
from hookcli.system.files import exists, is_file, nearest_file
from hookcli.tensors.files.opening import SUFFIXES, holds_tensors

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
_ALIKE = 0.8  # of a mistyped name of a model, where the word may be anything


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
