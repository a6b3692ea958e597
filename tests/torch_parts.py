"""Parts of hookcli, to run on a PyTorch that lacks a name: each returns the notes of its reports.

hookcli is imported anew in each run, so nothing of it is imported here.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


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
    from hookcli.capabilities.trace.probe import TraceProbe
    from hookcli.hooks.kinds import HookKind
    from hookcli.probes.grads import GradsProbe

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
    from hookcli.engine.run_info import finished
    from hookcli.hooks.existing import existing_hooks

    model = _net()
    model.register_forward_hook(print, with_kwargs=True, always_call=True)
    model.fc.register_full_backward_hook(print)
    model.fc.register_state_dict_pre_hook(print)
    model.fc.weight.register_hook(print)
    existing_hooks(model)
    return list(finished({}).get("notes", ()))


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


def _losses() -> list[str]:
    """Steps of a training with a loss of each kind, into a record."""
    import torch
    from torch.nn import functional

    import hookcli

    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    targets = torch.rand(2, 4)
    losses: list[Callable[[Any], Any]] = [
        lambda out: functional.cross_entropy(out, torch.arange(2)),
        lambda out: functional.binary_cross_entropy_with_logits(out, targets),
        lambda out: functional.binary_cross_entropy(out.sigmoid(), targets),
        lambda out: functional.mse_loss(out, targets) + 0.5 * functional.mse_loss(out.square(), targets),
        lambda out: functional.mse_loss(out, targets),
    ]
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        with hookcli.watch(model, every=1, output=record):
            for loss in losses * 2:
                optimizer.zero_grad()
                loss(model(torch.randn(2, 3, 4, 4))).backward()
                optimizer.step()
        return list(json.loads(record.read_text().splitlines()[-1])["notes"])


def _compiled() -> list[str]:
    """A model that is compiled, and one with a part that is compiled in place."""
    import torch
    from torch import nn

    import hookcli
    from hookcli.engine.lockstep.side import compiled
    from hookcli.engine.run_info import finished
    from hookcli.hooks.torch_private.programs import emulated_casts, unwrapped

    def backend(graph: Any, inputs: Any) -> Any:
        return graph

    (in_place := nn.Linear(2, 2)).compile(backend=backend)
    with compiled(in_place, unwrapped(in_place)):
        notes = list(finished({}).get("notes", ()))
    whole, part = torch.compile(nn.Linear(2, 2), backend=backend), nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    whole(torch.ones(1, 2))
    part[0].compile(backend=backend)
    part(torch.ones(1, 2))
    for model in (whole, part):
        for probes in (["shapes", "grads"], ["activations"]):
            with emulated_casts():
                reports = hookcli.capture(model, torch.ones(1, 2), probes)
            notes.extend(note for report in reports for note in report.meta.get("notes", ()))
    return [note for note in notes if "without looks" not in note]


def _compilations() -> list[str]:
    """The compiler's own notes: of a graph that breaks, without looks inside, and of a training, into a record."""
    import torch
    from torch import nn

    import hookcli

    breaks, part = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    breaks[1].register_forward_hook(lambda *_: print(end=""))
    report = hookcli.check(breaks, torch.ones(2, 2), compile="eager", backward=False, select=["HK039"])
    notes = [note for note in report.meta.get("notes", ()) if not note.startswith("torch.compile (eager)")]
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

    from hookcli.capabilities.comm.ddp import DDPSteps, communicate
    from hookcli.engine.prepare import PreparedRun
    from hookcli.engine.step import Step
    from hookcli.hooks.communication.comm_hooks import find_hook

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    run = PreparedRun.of(nn.Linear(3, 3), (torch.ones(2, 3),), Step(backward=True))
    report = communicate(run, [find_hook("fp16")], DDPSteps(steps=1))
    return list(report.meta.get("notes", ()))


PARTS: dict[str, Callable[[], list[str]]] = {
    "capture": _capture,
    "shapes": _shapes,
    "hooks": _hooks,
    "run": _run,
    "losses": _losses,
    "compiled": _compiled,
    "compilations": _compilations,
    "comm": _comm,
}
