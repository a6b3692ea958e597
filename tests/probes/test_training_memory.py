"""Memory that training takes, as `shapes` counts it without running backward: against PyTorch, and by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from support import swept, untouched
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.engine.capture import capture
from hookcli.errors import HookcliError, ModelError, UsageError
from hookcli.hooks.kinds import HookKind
from hookcli.probes.shapes import ShapesProbe
from hookcli.reporters.footer import totals_line
from hookcli.table import Report

BATCH = 8


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4, bias=False))


def shapes(model: nn.Module, *inputs: Tensor) -> Report:
    return capture(model, inputs, ["shapes"])[0]


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_an_mlp_by_hand(device: str) -> None:
    model, x = mlp().to(device), torch.zeros(BATCH, 16, device=device)
    with untouched(model) if device == "cpu" else torch.no_grad():
        report = shapes(model, x)
    params = 16 * 32 + 32 + 32 * 4
    assert report.totals == {
        "params": params,
        "trainable": params,
        "param_bytes": 4 * params,
        "grad_bytes": 4 * params,
        "optimizer_bytes": 2 * 4 * params + 4 * 3,  # two moments, and a step for each of three tensors
        "kept_bytes": 4 * BATCH * (16 + 32),  # the input, and the result of the ReLU, which the last layer shares
        "macs": BATCH * (16 * 32 + 32 * 4),
    }
    rows = {row.fqn: row for row in report.rows}
    assert {fqn: row["kept"] for fqn, row in rows.items()} == {
        "": 4 * BATCH * 48,
        "0": 4 * BATCH * 16,
        "1": 4 * BATCH * 32,
        "2": 0,
    }
    assert rows["0"]["params_share"] == 544 / params and rows["2"]["macs_share"] == 128 / (512 + 128)


def test_adamws_state_is_what_pytorch_allocates() -> None:
    model = mlp()
    model[0].bias.requires_grad_(False)
    totals = shapes(model, torch.randn(BATCH, 16)).totals
    model(torch.randn(BATCH, 16)).sum().backward()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    states = [x for state in optimizer.state.values() for x in state.values()]
    assert totals["optimizer_bytes"] == sum(x.nbytes for x in states)
    assert totals["grad_bytes"] == sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)


def saved_by_pytorch(model: nn.Module, *inputs: Tensor) -> int:
    """Bytes of the distinct storages that autograd saves, without those of parameters and buffers."""
    held = {x.untyped_storage().data_ptr() for x in (*model.parameters(), *model.buffers())}
    saved: dict[int, Tensor] = {}

    def pack(x: Tensor) -> Tensor:
        saved.setdefault(x.untyped_storage().data_ptr(), x)
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        output = model(*inputs)
    del output
    return sum(x.untyped_storage().nbytes() for key, x in saved.items() if key not in held)


@pytest.mark.sweep
@pytest.mark.parametrize("build", [torchvision.models.resnet18, swept(torchvision.models.mobilenet_v3_small)])
def test_kept_is_what_pytorch_saves(build: Callable[[], nn.Module]) -> None:
    model, x = build().eval(), torch.randn(2, 3, 64, 64)
    expected = saved_by_pytorch(model, x)
    assert shapes(model, x).totals["kept_bytes"] == expected
    # On meta batch norms allocate statistics in eval mode, too.
    assert shapes(model.to("meta"), x.to("meta")).totals["kept_bytes"] == pytest.approx(expected, rel=0.02)


def test_kept_is_what_the_trace_counts() -> None:
    model, x = mlp(), torch.randn(BATCH, 16)
    kinds = (HookKind.SAVED_TENSOR_PACK,)
    traced = capture(model, x, [TraceProbe(kinds)])[0].totals["kept_bytes"]
    beside = capture(model, x, ["shapes", "grads"])[0].totals["kept_bytes"]
    assert shapes(model, x).totals["kept_bytes"] == traced == beside


@pytest.mark.sweep
def test_in_training_the_meta_device_keeps_what_the_cpu_does() -> None:
    model, x = torchvision.models.resnet18().train(), torch.randn(2, 3, 64, 64)
    expected = saved_by_pytorch(model, x)
    assert shapes(model.to("meta"), x.to("meta")).totals["kept_bytes"] == expected


@pytest.mark.parametrize("part", [nn.Dropout(0.5), nn.BatchNorm1d(32)])
def test_the_line_names_the_mode_where_training_keeps_other_tensors(part: nn.Module) -> None:
    model, x = nn.Sequential(nn.Linear(16, 32), part, nn.Linear(32, 4)), torch.randn(BATCH, 16)
    reports = {mode: shapes(model.train(mode == "train"), x) for mode in ("eval", "train")}
    kept = {mode: report.totals["kept_bytes"] for mode, report in reports.items()}
    assert kept["train"] == saved_by_pytorch(model, x) > kept["eval"]
    assert " kept for backward in eval mode = " in totals_line(reports["eval"])
    assert totals_line(reports["eval"]).endswith(
        " (--train --sort -kept: which modules keep it); `hookcli memory`: the peak"
    )
    assert totals_line(reports["eval"], sorts=True).endswith(
        " KiB, not all at once, without temporaries (--train: in train mode); `hookcli memory`: the peak"
    )
    for same in (reports["train"], shapes(mlp().eval(), x)):
        assert re.search(
            r" kept for backward = [\d.]+ KiB, not all at once, without temporaries"
            r" \(--sort -kept: which modules keep it\); ",
            totals_line(same),
        )


class NoGraph(nn.Module):
    """Can't run with gradients on: it writes into a leaf, or differentiates what was let go."""

    def __init__(self, run: Callable[[nn.Parameter], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        self.run(self.weight)
        return x @ self.weight


def differentiated(weight: nn.Parameter) -> None:
    with torch.enable_grad():
        torch.autograd.grad(weight.square().sum(), weight)


@pytest.mark.parametrize("run", [lambda weight: weight.mul_(1), differentiated, lambda weight: weight.numpy()])
def test_a_model_that_cannot_run_with_gradients_on_still_has_shapes(run: Callable[[nn.Parameter], Any]) -> None:
    report = shapes(NoGraph(run), torch.ones(3, 2))
    assert report.rows[0]["output_shape"] == [3, 2] and report.rows[0]["kept"] is None
    assert "kept_bytes" not in report.totals and report.totals["macs"] == 12
    (skipped,) = [item for item in report.skipped if "memory" in item.reason]
    assert skipped.reason.startswith("memory kept for backward: fails with gradients on (RuntimeError: ")


def refuses(y: Tensor) -> Tensor:
    raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("device", "breaks", "edits", "runs", "error"),
    [
        ("cpu", lambda y: y @ torch.ones(3), (), 1, ModelError),  # a shape is wrong with gradients and without
        ("meta", lambda y: y @ torch.ones(3, device="meta"), (), 1, ModelError),
        ("cpu", lambda y: y.nowhere, (), 1, ModelError),
        ("cpu", lambda y: {}["gradient"], (), 4, ModelError),  # the name could have to do with them
        ("cpu", refuses, (), 2, ModelError),  # for another reason
        ("meta", lambda y: y.sum().item(), (), 1, ModelError),  # needs values, whatever is recorded
        ("cpu", lambda y: y, "idle:output=zero", 1, UsageError),
    ],
)
def test_gradients_are_not_blamed_for_other_failures(
    device: str, breaks: Callable[[Tensor], Any], edits: Any, runs: int, error: type[HookcliError]
) -> None:
    ran = []

    class MetaNet(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.idle = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Any:
            ran.append(torch.is_grad_enabled())
            return breaks(super().forward(x))

    with pytest.raises(error) as caught:
        capture(MetaNet().to(device), torch.ones(3, 2, device=device), ["shapes"], edits=edits)
    assert len(ran) == runs and caught.value.reports[0].meta["complete"] is (error is UsageError)
    assert not [item for item in caught.value.reports[0].skipped if "memory" in item.reason]


def test_gradients_stay_off_where_values_are_looked_at() -> None:
    seen = []

    class Asking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(torch.is_grad_enabled())
            return super().forward(x)

    beside, _ = capture(Asking(2, 2), torch.ones(1, 2), ["shapes", "activations"])
    alone = shapes(Asking(2, 2), torch.ones(1, 2))
    assert seen == [False, True] and "kept_bytes" not in beside.totals and alone.totals["kept_bytes"] == 8
    assert isinstance(ShapesProbe().in_callers_run(), ShapesProbe) and not ShapesProbe().in_callers_run().records_graph


def test_dtypes_that_only_the_meta_device_multiplies_are_said() -> None:
    model, x = mlp().to("meta"), torch.zeros(BATCH, 16, dtype=torch.int64, device="meta")
    (note,) = shapes(model, x).meta["notes"]
    assert note.startswith("the meta device does not check dtypes (linear of int64 and float32); ")
    assert "notes" not in shapes(model, x.float()).meta


def test_embeddings_on_meta_say_that_indices_go_unchecked() -> None:
    model = nn.Embedding(128, 4)
    ids = torch.zeros(2, 200, dtype=torch.int64)
    assert "notes" not in shapes(model, ids).meta
    (note,) = shapes(model.to("meta"), ids.to("meta")).meta["notes"]
    assert note == (
        "the meta device does not check indices ((model) takes 0 to 127); "
        "`hookcli activations` with the same input does"
    )
