"""Private lists in which torch.compile keeps notes of its own work, read after the fact.

Nothing is registered, enabled or wrapped, so what is compiled stays the same, and a process that compiles nothing
imports nothing. PyTorch also has callbacks (`torch._dynamo.callback`), which tell no reasons; logging, whose messages
are texts, and are printed where a program enables them; and `torch._dynamo.explain`, which compiles anew with a backend
of its own. The lists are the same in torch 2.11 to 2.15.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from traceback import FrameSummary
from typing import Any, NamedTuple

import torch

from hookcli.hooks.torch_private.dynamo import imported
from hookcli.tensors.torch_private import private

_UTILS = "torch._dynamo.utils"
_LOST = "compilations are described in part, or not at all"
_MANY = 100_000  # compilations
_SOFT = ("Unsupported", "UserError")  # others are raised, unless torch._dynamo.config.suppress_errors is set
_RESUMES = "torch_dynamo_resume_in_"  # and then, in a name, the function's own name and _at_LINE


class Attempt(NamedTuple):
    """A compilation of a function, or of its part after a graph break; of its backward pass, if `forward` is False.

    `id` is the number of the function's code, a slash, and the number of the compilation. `line` is where the function
    begins, or the part that `resumes` it. `made`: there is code for it now, with a `graph` or without. `recompiled`:
    the guard that failed. `failure`: why the function runs as it is, and the line of the user's code that is to blame.
    """

    id: str
    function: str
    file: str
    line: int
    resumes: bool
    made: bool
    graph: bool
    forward: bool
    seconds: float
    recompiled: str | None
    failure: str | None
    failed_at: tuple[str, int] | None

    @classmethod
    def of(cls, metrics: object) -> Attempt:
        """Take it from PyTorch's CompilationMetrics, whose fields are None where they do not apply."""

        def get(name: str) -> Any:
            return private(metrics, name, None, _LOST)

        start, end, made = get("start_time_us"), get("end_time_us"), bool(get("has_guarded_code"))
        failure, file, line = get("fail_reason"), get("fail_user_frame_filename"), get("fail_user_frame_lineno")
        name = str(get("co_name"))
        resumes = name.startswith(_RESUMES)
        return cls(
            id=str(get("compile_id")),
            function=name.removeprefix(_RESUMES).rpartition("_at_")[0] if resumes else name,
            file=str(get("co_filename") or ""),
            line=int(get("co_firstlineno") or 0),
            resumes=resumes,
            made=made,
            graph=made and bool(get("graph_op_count")),
            forward=get("is_forward") is not False,
            seconds=(end - start) / 1e6 if start and end else 0.0,
            recompiled=get("recompile_reason"),
            failure=failure if get("fail_type") in _SOFT or get("config_suppress_errors") else None,
            failed_at=(str(file), int(line)) if file and line else None,
        )


class Break(NamedTuple):
    """A graph break: PyTorch's reason, and the lines that were being traced, the innermost last."""

    reason: str
    stack: Sequence[FrameSummary]


class CompilerNotes:
    """The notes that torch.compile has made since the last reading, or since this object was made."""

    def __init__(self) -> None:
        self._last: list[object] = [None, None]  # the last metrics and the last break that were read
        self.read()

    def read(self) -> tuple[list[Attempt], list[Break], bool]:
        """The new compilations and breaks; False if there were more compilations than PyTorch keeps metrics of."""
        if (utils := imported(_UTILS)) is None:
            return [], [], True
        if not any(private(utils, name, [None], _LOST) for name in ("_compilation_metrics", "graph_break_reasons")):
            return [], [], True  # nothing has been compiled
        all_metrics = private(utils, "get_compilation_metrics", list, _LOST)()
        metrics, known = self._new(0, all_metrics)
        breaks, _ = self._new(1, private(utils, "graph_break_reasons", [], "graph breaks are not named"))
        made = [Break(private(one, "reason", "", _LOST), private(one, "user_stack", (), _LOST)) for one in breaks]
        return [Attempt.of(one) for one in metrics], made, known or len(all_metrics) < _kept(utils)

    def _new(self, number: int, items: Sequence[object]) -> tuple[Sequence[object], bool]:
        """The items after the last one that was read, all if it is gone (as after torch.compiler.reset), and whether it
        was there."""
        last, end = self._last[number], len(items)
        first = next((place for place in range(end, 0, -1) if items[place - 1] is last), 0)
        if end:
            self._last[number] = items[-1]
        return items[first:end], first > 0


def tells_of_compilations() -> bool:
    """False if this PyTorch keeps no metrics, so that a compilation can't be told from none."""
    return private(_UTILS, "get_compilation_metrics", None, _LOST) is not None


def _kept(utils: Any) -> int:
    """The number of compilations that PyTorch keeps metrics of."""
    metrics = private(utils, "_compilation_metrics", None, "of many compilations, the first are not described")
    return getattr(metrics, "maxlen", None) or sys.maxsize


@contextmanager
def compiling_anew() -> Iterator[None]:
    """Drop compiled code before and after the block, and have PyTorch keep metrics of all compilations, not of 64.

    It does not warn of what these tell, unless TORCH_LOGS asks.
    """
    from torch._dynamo import utils

    limited: Callable[[int], object] = private(utils, "set_compilation_metrics_limit", int, _LOST)
    before = _kept(utils)
    torch.compiler.reset()
    limited(_MANY)
    try:
        with silent_compiler():
            yield
    finally:
        limited(before)
        torch.compiler.reset()


@contextmanager
def silent_compiler() -> Iterator[None]:
    """Keep from the log, unless TORCH_LOGS asks, what reports tell of compilations, and that there is no GPU."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE if not os.environ.get("TORCH_LOGS")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


_TALKATIVE = ("torch._dynamo", "torch._subclasses.fake_tensor", "torch.utils.cpp_extension")
