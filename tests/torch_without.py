"""Runs hookcli in forks of one process that has imported torch, each on a PyTorch that seems to lack one private name.

PyTorch itself keeps the name: only the rooms where hookcli looks it up don't find it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

ROOM = "hookcli.tensors.torch_private"
Lookup = list[str]  # the room, the owner, the private name, and what is said to be lost without it


class Without:
    """In a `with` block: hookcli's lookups, and what it does without one of them."""

    def __enter__(self) -> Without:
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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
    for name in [name for name in sys.modules if name.partition(".")[0] == "hookcli"]:
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
    while frame.f_code.co_name in ("getter", "caller", "<dictcomp>", "<listcomp>"):
        frame = frame.f_back
    return str(frame.f_globals["__name__"])


# Parts of hookcli: each returns the notes of what it reports.


def _net(inplace: bool = True) -> Any:
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.relu = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(inplace)
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.relu(self.norm(self.conv(x)))).flatten(2).mean(2)
            return checkpoint(self.fc, y, use_reentrant=False) + checkpoint(self.fc, y, use_reentrant=True)

    return Net()


def _capture() -> list[str]:
    """Hooks on modules, tensors, nodes and what is saved for backward; gradients, edits and checks."""
    import torch

    import hookcli
    from hookcli.hooks.kinds import HookKind
    from hookcli.probes.grads import GradsProbe
    from hookcli.probes.trace import TraceProbe

    notes: list[str] = []

    def of(*probes: Any, inplace: bool = True, **settings: Any) -> None:
        for report in hookcli.capture(_net(inplace), torch.randn(2, 3, 4, 4), list(probes), loss="sum", **settings):
            notes.extend(report.meta.get("notes", ()))

    of("inputs", "activations", "graph", GradsProbe(), GradsProbe("outputs"), GradsProbe("inputs"))
    of(GradsProbe("inputs"), edits=["fc:grad_input=scale(2)", "norm:output=scale(2)", "conv:grad_output=scale(2)"])
    of(TraceProbe([kind for kind in HookKind if kind != "comm"]))
    of(GradsProbe("outputs", "module"), inplace=False, globally=True)
    return notes + list(hookcli.check(_net(), torch.randn(2, 3, 4, 4)).meta.get("notes", ()))


def _shapes() -> list[str]:
    """Costs, of all that has its own ways: vmap, the fused path of attention, TorchScript, sparse and quantized."""
    import torch
    from torch import nn

    import hookcli

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
            self.script = torch.jit.script(nn.Linear(8, 8))
            self.packed = torch.ao.nn.quantized.dynamic.Linear(8, 8)
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            y = self.packed(self.script(self.layer(x)))
            return torch.vmap(self.fc)(y) + torch.sparse.mm(torch.eye(8).to_sparse(), y[0])

    model = Odd().eval()
    with torch.no_grad():
        (report,) = hookcli.capture(model, torch.randn(2, 8, 8), "shapes")
    return list(report.meta.get("notes", ()))


def _hooks() -> list[str]:
    """The hooks that a model carries, as `hookcli hooks` lists them."""
    from hookcli.engine.run_info import RunInfo
    from hookcli.hooks.existing import existing_hooks

    model = _net()
    model.register_forward_hook(print, with_kwargs=True, always_call=True)
    model.fc.register_full_backward_hook(print)
    model.fc.register_state_dict_pre_hook(print)
    model.fc.weight.register_hook(print)
    existing_hooks(model)
    return list(RunInfo().to_meta().get("notes", ()))


def _run() -> list[str]:
    """Steps of a training with two optimizers, a GradScaler and a forward that fails, into a record."""
    import torch

    import hookcli

    model = _net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        with hookcli.watch(model, every=1, output=record):
            for _ in range(2):
                with suppress(RuntimeError):
                    model(torch.randn(2, 5, 4, 4))
                optimizer.zero_grad()
                scaler.scale(model(torch.randn(2, 3, 4, 4)).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
                torch.func.grad(lambda x: model.fc(x).sum())(torch.ones(1, 4))
        return list(json.loads(record.read_text().splitlines()[-1])["notes"])


def _compiled() -> list[str]:
    """A model that is compiled, and one with a part that is compiled in place."""
    import torch
    from torch import nn

    import hookcli

    notes: list[str] = []
    whole, part = torch.compile(nn.Linear(2, 2), backend="eager"), nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    whole(torch.ones(1, 2))
    part[0].compile(backend="eager")
    part(torch.ones(1, 2))
    for model in (whole, part):
        for report in hookcli.capture(model, torch.ones(1, 2), ["shapes", "grads"]):
            notes.extend(report.meta.get("notes", ()))
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        with hookcli.watch(part, every=1, output=record):
            torch.compile(part[1], backend="eager")(torch.ones(2))
            torch.optim.SGD(part.parameters(), 0.1).step()
        return notes + list(json.loads(record.read_text().splitlines()[-1])["notes"])


def _comm() -> list[str]:
    """DDP's communication hooks, in a group of one process."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from hookcli.engine.ddp import DDPSteps, communicate
    from hookcli.engine.prepare import PreparedRun
    from hookcli.engine.step import Step
    from hookcli.hooks.comm_hooks import find_hook

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    run = PreparedRun.of(nn.Linear(3, 3), (torch.ones(2, 3),), Step(backward=True))
    report = communicate(run, [find_hook("fp16")], DDPSteps(steps=1))
    return list(report.meta.get("notes", ()))


PARTS: dict[str, Callable[[], list[str]]] = {
    "capture": _capture,
    "shapes": _shapes,
    "hooks": _hooks,
    "run": _run,
    "compiled": _compiled,
    "comm": _comm,
}


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
    _serve()
