"""Runs hookcli in forks of one process that has imported torch, each on a PyTorch that seems to lack one private name.

PyTorch itself keeps the name: only the rooms where hookcli looks it up don't find it.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import traceback
import warnings
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any

import forks
from torch_parts import PARTS

ROOM = "hookcli.tensors.torch_private"
KEPT = {"table", "diff", "checks", "reporters", "registry", "system", "errors"}  # no torch, as import-linter sees to
Lookup = list[str]  # the room, the owner, the private name, and what is said to be lost without it


class Without:
    """In a `with` block: hookcli's lookups, and what it does without one of them."""

    def __enter__(self) -> Without:
        command = [sys.executable, __file__]
        self._process = forks.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, kept=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def run(self, part: str, lookup: Lookup | None = None) -> dict[str, Any]:
        """Run a part of hookcli, without what that lookup looks up.

        Returns what the part looks up, what its reports note, and the traceback of what failed.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([part, lookup]) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def _serve() -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # what is printed goes to stderr
    for line in sys.stdin:
        part, lookup = json.loads(line)
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                answer = _answer(part, lookup)
                os.write(theirs, json.dumps(answer).encode() + b"\n")
            finally:
                os._exit(0)
        os.close(theirs)
        with open(ours, "rb") as answers:  # noqa: PTH123
            said = answers.read()
        os.waitpid(pid, 0)
        os.write(out, said or json.dumps({"failed": "the process died"}).encode() + b"\n")


def _answer(part: str, missing: Lookup | None) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)  # PyTorch makes its pool of threads anew in a fork, which must be done in this thread
    lookups = _import_without(missing)
    try:
        notes = PARTS[part]()
    except BaseException:
        return {"failed": traceback.format_exc()}
    return {"lookups": lookups, "notes": notes, "failed": None}


def _import_without(missing: Lookup | None) -> list[Lookup]:
    """Import the lowest room with a `getattr` of its own, which does not find that name; returns what is looked up."""
    for name in list(sys.modules):
        package, _, place = name.partition(".")
        if package == "hookcli" and place and place.partition(".")[0] not in KEPT:
            del sys.modules[name]
    import_module("hookcli.tensors")
    spec = find_spec(ROOM)
    assert spec is not None and spec.loader is not None
    room: Any = module_from_spec(spec)
    lookups: list[Lookup] = []

    def found(owner: Any, name: str, *default: Any) -> Any:
        caller = sys._getframe(1)
        if caller.f_code.co_name != "private":
            return getattr(owner, name, *default)
        given = caller.f_locals["owner"]
        title = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
        lookup = [_room_of(caller), title, name, caller.f_locals["lost"]]
        lookups.extend([lookup] if lookup not in lookups else [])
        return default[0] if lookup == missing else getattr(owner, name, *default)

    room.getattr = found
    sys.modules[ROOM] = room
    sys.modules["hookcli.tensors"].torch_private = room  # type: ignore[attr-defined]
    spec.loader.exec_module(room)
    return lookups


def _room_of(private: Any) -> str:
    """The file that looks a name up: `private` is the frame of the lookup, perhaps of a getter's."""
    frame = private.f_back
    while frame.f_code.co_name in ("getter", "caller", "kept", "<dictcomp>", "<listcomp>"):
        frame = frame.f_back
    return str(frame.f_globals["__name__"])


def _warm() -> None:
    """Have imported what PyTorch imports when it is first used so. No backward: autograd's threads survive no fork."""
    import torch
    import torch.ao.nn.quantized.dynamic
    import torch.utils.checkpoint
    import torch.utils.flop_counter

    torch.jit.script(torch.nn.Linear(1, 1))
    torch.compile(torch.nn.Linear(1, 1), backend="eager")(torch.ones(1))
    torch.compiler.reset()
    torch.optim.SGD([torch.ones(1)])
    for part in ("shapes", "hooks"):
        _answer(part, None)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    _warm()
    gc.freeze()
    _serve()
