"""Follows torch.compile in this process, and puts its work into words: lines of the user's code, reasons, guards."""

from __future__ import annotations

import linecache
import re
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from hookcli import errors
from hookcli.hooks.origin import INSTALLED, shown_path
from hookcli.hooks.torch_private.compilations import Attempt, Break, CompilerNotes
from hookcli.table.compilation import Compilation, GraphBreak, LeftEager, Recompiled

_OURS = (str(Path(errors.__file__).parent),)
_FOLDERS = (sysconfig.get_paths()["stdlib"], str(Path(torch.__file__).parent), *_OURS)
_WRAPPERS = (str(Path(torch.__file__).parent / "_dynamo"),)
# The beginning of a reason as PyTorch writes it, in words, and what to try. `{}` is what the expression captures.
_WORDS = (
    (
        r"(?:generic_jump|Data-dependent branching)",
        "branches on a tensor's value",
        "torch.where, or torch.cond, keeps both branches in the graph",
    ),
    (
        r"Unsupported Tensor\.(?:item|tolist)\(\)",
        "reads a tensor's value into Python",
        "keep it a tensor, or set TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS=1",
    ),
    (
        r"[\s\S]*?builtin (?:operator )?`(?:builtins\.)?([\w.]+?)\.?`",
        "{} is built in, and not traced",
        "move it out of the compiled code, or guard it by `if not torch.compiler.is_compiling()`",
    ),
    (
        r"[\s\S]*?<function (\S+) at \w+> since it was wrapped with `torch.compiler.disable`",
        "{} is left out by torch.compiler.disable",
        "remove the decorator if torch.compile can trace it by now",
    ),
    (
        r"(?:step_unsupported|comprehension_graph_break)",
        "a break inside try, with or a comprehension, from which torch.compile can't go on",
        "move what breaks the graph out of that block; TORCH_LOGS=graph_breaks shows it",
    ),
)
_ADVICE = "TORCH_LOGS=graph_breaks shows more"
_LIMIT = "Dynamo recompile limit exceeded"
_SIZE = re.compile(r"\S+: tensor '(.*)' size mismatch at index (\d+)\. expected (\d+), actual (\d+)")
_SENTENCE = r"((?:e\.g\.|i\.e\.|\.\S|[^.\n])+)"
_LONGEST = 160  # characters of a reason


class CompilationLog:
    """Follows the compilations of this process from now on. `read` it now and then: PyTorch's own list is short."""

    def __init__(self) -> None:
        self._notes = CompilerNotes()
        self._attempts: list[Attempt] = []
        self._breaks: list[Break] = []
        self._complete = True

    def read(self) -> bool:
        """Take over PyTorch's new notes. Returns whether a function was compiled again."""
        attempts, breaks, complete = self._notes.read()
        self._attempts += [one for one in attempts if not _is_within(one.file, _OURS)]  # hooks are traced, too
        self._breaks += breaks
        self._complete = self._complete and complete
        return any(one.recompiled for one in attempts)

    def skip(self) -> None:
        """Leave out PyTorch's new notes, of programs that are hookcli's own."""
        self._notes.read()

    def result(self) -> Compilation | None:
        """All compilations so far; None if there was none."""
        self.read()
        if not self._attempts:
            return None
        # The functions that torch.compile gave up, each once.
        eager: dict[tuple[str, str], LeftEager] = {}
        for one in self._attempts:
            if one.failure and one.forward:
                function = _function(one, self._attempts)
                eager.setdefault(function, LeftEager(*function, *_why(one)))
        return Compilation(
            graphs=sum(one.graph and one.forward and not one.recompiled for one in self._attempts),
            seconds=sum(one.seconds for one in self._attempts),
            breaks=_graph_breaks(self._breaks),
            recompiled=_recompiled(self._attempts),
            eager=[*eager.values()],
            complete=self._complete,
        )


def _graph_breaks(breaks: Iterable[Break]) -> list[GraphBreak]:
    """The breaks, each once: one in a function that was traced as part of its caller is met again in itself."""
    longest: dict[tuple[str, int | None, str], Break] = {}
    for one in breaks:
        key = (one.stack[-1].filename, one.stack[-1].lineno, _explained(one.reason)[0]) if one.stack else ("", None, "")
        if len(one.stack) > (len(longest[key].stack) if key in longest else 0):
            longest[key] = one
    made: dict[GraphBreak, None] = {}
    for reason, stack in longest.values():
        innermost = stack[-1]
        own = next((frame for frame in reversed(stack) if _is_own(frame.filename)), innermost)
        inner = "" if own is innermost else f"{_place(innermost.filename, innermost.lineno)} {innermost.name}"
        words, advice = _explained(reason)
        if _is_within(own.filename, _WRAPPERS):
            made[GraphBreak("", "", words, advice)] = None
        else:
            made[GraphBreak(_place(own.filename, own.lineno), (own.line or "").strip(), words, advice, inner)] = None
    return list(made)


def _explained(reason: str) -> tuple[str, str]:
    """A reason as PyTorch writes it, in words, and what to try.

    PyTorch's has a title, an explanation, hints, and where there are several causes, these after one another.
    """
    cause = reason.rpartition("another graph break occurred: ***")[0] or reason  # the first one
    for pattern, words, advice in _WORDS:
        if match := re.match(pattern, cause):
            return words.format(*match.groups()), advice
    title = cause.strip().partition("\n")[0]
    explanation, hint = (re.search(f"{word}: {_SENTENCE}", cause) for word in ("Explanation", "Hint"))
    return _plain(explanation[1] if explanation else title), _plain(hint[1]) if hint else _ADVICE


def _plain(text: str) -> str:
    text = re.sub(r" at 0x[0-9a-f]+", "", " ".join(text.split())).replace("Dynamo", "torch.compile")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _recompiled(attempts: Sequence[Attempt]) -> list[Recompiled]:
    """The functions that were compiled again: those between graph breaks count as the one that they are parts of."""
    by_function: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
    for one in attempts:
        if one.recompiled and one.made:
            by_function[_function(one, attempts)].append(one)
    made = []
    for (place, name), items in by_function.items():
        guards = list(dict.fromkeys(_guard(one.recompiled or "") for one in items))
        most = max(Counter(one.id.partition("/")[0] for one in items).values())
        sizes = all(_SIZE.match(one.recompiled or "") for one in items)
        made.append(Recompiled(place, name, len(items), most, guards, sizes))
    return made


def _function(attempt: Attempt, attempts: Sequence[Attempt]) -> tuple[str, str]:
    """The place and name of a function; for a part after a graph break, of the function around it.

    PyTorch names no function where the limit was hit, but the number of its code.
    """
    number = attempt.id.partition("/")[0]
    if not attempt.file:
        attempt = next((one for one in attempts if one.file and one.id.partition("/")[0] == number), attempt)
    same = (one for one in attempts if (one.file, one.function) == (attempt.file, attempt.function) and not one.resumes)
    begins = [one.line for one in same if one.line <= attempt.line] if attempt.resumes else []
    if _is_within(attempt.file, _WRAPPERS):
        return "", "the compiled call"
    return _place(attempt.file, max(begins, default=attempt.line)), attempt.function


def _guard(reason: str) -> str:
    """The guard that failed: without the number of the compilation that it belongs to, and with the line it is from."""
    if size := _SIZE.match(reason):
        return f"{size[1]}.size({size[2]}) was {size[3]}, is {size[4]}"
    guard, _, comment = re.sub(r"^\S+/\S+: ", "", reason.partition("\n")[0]).partition("  # ")
    place = re.search(r"(?:^|# )(?:\S*/)?([^\s/]+:\d+) in ", comment)  # PyTorch cuts paths at their beginning
    return _plain(guard) + (f" ({place[1]})" if place else "")


def _why(attempt: Attempt) -> tuple[str, bool]:
    """Why a function was given up, and whether it was compiled too often."""
    if (attempt.failure or "").startswith(_LIMIT):
        return f"recompiled too often; the last guard that failed: {_guard(attempt.recompiled or '')}", True
    words, at = _explained(attempt.failure or "")[0], attempt.failed_at
    loop = "in a loop, " if "graph break in loop" in (attempt.failure or "") else ""
    return (f"{loop}{_place(*at)} `{linecache.getline(*at).strip()}`: {words}" if at else words), False


def _is_own(file: str) -> bool:
    """True for a file of the user's: not of Python, PyTorch or an installed package."""
    return not (file.startswith("<frozen ") or _is_within(file, _FOLDERS) or {*INSTALLED} & {*Path(file).parts})


def _is_within(file: str, folders: Sequence[str]) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in folders)


def _place(file: object, line: object) -> str:
    return f"{shown_path(str(file))}:{line}"
