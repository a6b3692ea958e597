"""Every figure of a sweep against a change made by hand, with PyTorch's own hooks, in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from capabilities.sweep.swept import Planted, gpt2, logits, relative, rows_of, run_of, swept
from support import hooks_on, untouched
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck, ResNet

from hookcli import Step, capture
from hookcli.capabilities.sweep.run import SweepRun
from hookcli.capabilities.sweep.trials import Sweep
from hookcli.probes.activations import ActivationsProbe
from hookcli.table.dump import Dump
from hookcli.tensors.files.dump_writer import DumpWriter
from hookcli.tensors.tree import replace

pytestmark = pytest.mark.xdist_group("timm and Transformers")

Change = Callable[[Tensor], Tensor]


def by_hand(model: nn.Module, fqn: str, change: Change, *inputs: Any) -> Tensor:
    """The logits with `change` on all floating-point tensors that a module returns."""
    on = lambda path, x: change(x) if x.is_floating_point() else x  # noqa: E731
    handle = model.get_submodule(fqn).register_forward_hook(lambda m, args, output: replace(output, on))
    try:
        with torch.no_grad():
            return logits(model(*inputs))
    finally:
        handle.remove()


def resnet() -> tuple[nn.Module, Any]:
    return ResNet(Bottleneck, [1, 1, 1, 1], 10, width_per_group=2).double().eval(), torch.randn(2, 3, 16, 16).double()


def mean(x: Tensor) -> Tensor:
    """Over the batch and positions, by the formula."""
    x = x.movedim(1, -1) if x.dim() > 3 else x
    means = x.reshape(-1, x.shape[-1]).sum(0) / x[..., 0].numel()
    y = means.expand_as(x).clone()
    return y.movedim(-1, 1) if x.dim() > 3 else y


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("make", "operation", "change"),
    [
        pytest.param(resnet, "mean", mean, marks=pytest.mark.sweep),
        (gpt2, "zero", torch.zeros_like),
        (Planted.made, "zero", torch.zeros_like),
        pytest.param(Planted.made, "mean", mean, marks=pytest.mark.sweep),
    ],
)
def test_every_module_equals_hooks_by_hand(make: Any, operation: str, change: Change) -> None:
    torch.manual_seed(0)
    model, x = make()
    with untouched(model):
        report = swept(model, x, operation=operation, depth=9.0, logit="3")
    assert sum(hooks_on(model).values()) == 0
    base = logits(model(x)).detach()
    number = base[0, 3] if base.dim() == 2 else base[0, -1, 3]
    copies = [item for item in report.skipped if ", which contains it" in item.reason]
    assert len(report.rows) > 10 and report.totals["runs"] == len(report.rows) + len(copies)
    for row in report.rows:
        expected = by_hand(model, row.fqn, change, x)
        assert row["output_change"] == pytest.approx(relative(base, expected), rel=1e-9, abs=1e-15), row.fqn
        logit = expected[0, 3] if base.dim() == 2 else expected[0, -1, 3]
        assert row["logit"] == pytest.approx(logit.item(), rel=1e-9, abs=1e-12)
        assert row["logit_change"] == pytest.approx((logit - number).item(), rel=1e-9, abs=1e-12)
    own = {n for n, m in model.named_modules() if n and type(m).forward is not nn.Module.forward}
    assert own == {row.fqn for row in report.rows} | {item.fqn for item in report.skipped}


def test_a_planted_module_is_in_the_first_line() -> None:
    """layers.2.mlp alone writes to the direction that logit 4 reads; 5 * 1 + 0.25 of the embedding."""
    model, x = Planted.made()
    report = swept(model, x, logit="4")
    assert report.totals["verdict"].startswith("layers.2.mlp decides logit 4: ")
    assert "→ 0 when zeroed" in report.totals["verdict"]
    first = report.rows[0]
    assert (first.fqn, first["order"], first["bottleneck"]) == ("layers.2.mlp", 1, False)


@pytest.mark.sweep
def test_bottlenecks_are_the_modules_that_no_way_goes_around() -> None:
    report = swept(*Planted.made())
    cuts = {row.fqn for row in report.rows if row["bottleneck"]}
    assert cuts == {"embed", "layers.0", "layers.1", "layers.2", "layers.3", "head"}
    assert [row["bottleneck"] for row in report.rows] == sorted(row["bottleneck"] for row in report.rows)
    assert not any(row["bottleneck"] for row in swept(*Planted.made(), operation="scale(0.5)").rows)
    chain = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    assert [row["bottleneck"] for row in swept(chain, torch.ones(2, 3)).rows] == [True] * 3
    torch.manual_seed(0)
    model, x = gpt2()
    cuts = {row.fqn for row in swept(model, x, depth=9.0).rows if row["bottleneck"]}
    blocks = {f"transformer.h.{n}" for n in range(2)}
    assert cuts == {"transformer", "transformer.wte", "transformer.ln_f", "lm_head", *blocks}


def test_a_part_that_is_all_of_its_module_has_no_row_of_its_own() -> None:
    """Each layer's mlp returns what its last layer returns. In `Wrapped` the part is scaled on its way out."""
    report = swept(*Planted.made(), depth=9.0)
    reasons = {item.fqn: item.reason for item in report.skipped}
    for n in range(4):
        assert (
            reasons[f"layers.{n}.mlp.2"] == f"when zeroed, it has the same effect as layers.{n}.mlp, which contains it"
        )
        assert {f"layers.{n}.mlp", f"layers.{n}.mlp.0"} <= {row.fqn for row in report.rows}
    assert [row["order"] for row in report.rows] == [*range(1, len(report.rows) + 1)]

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.none = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return 2 * cast(Tensor, self.part(x)) + 0 * cast(Tensor, self.none(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch, self.other = Wrapped(), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.branch(x) + self.other(x))

    assert {row.fqn for row in swept(Net(), torch.ones(2, 3)).rows} == {"branch", "branch.none", "other"}


@pytest.mark.sweep
def test_another_run_is_patched_in(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = gpt2()
    other, kept = (x + 5) % 16, dict[str, Any]()
    sink = DumpWriter(tmp_path / "d", 10**9, Dump("", ()))
    capture(model, other, probes=partial(ActivationsProbe, sink=sink))
    twin = copy.deepcopy(model)
    for fqn, module in twin.named_modules():
        module.register_forward_hook(lambda m, a, y, fqn=fqn: kept.update({fqn: y}))
    theirs = logits(twin(other)).detach()
    report = swept(model, x, operation=f"from({tmp_path / 'd'})", depth=3.0)
    base = logits(model(x)).detach()
    for row in report.rows:
        values = iter(kept[row.fqn] if isinstance(kept[row.fqn], tuple) else [kept[row.fqn]])
        if row.fqn != "transformer":
            found = by_hand(model, row.fqn, lambda x, values=values: next(values), x)
            assert row["output_change"] == pytest.approx(relative(base, found), rel=1e-9), row.fqn
    assert rows_of(report)["lm_head"]["output_change"] == pytest.approx(relative(base, theirs), rel=1e-12)
    assert "when patched" in report.totals["verdict"]


def test_each_run_draws_the_same_random_numbers() -> None:
    """With dropout, multiplying by one changes no bit; each module's run starts from the same state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 3))
    x = torch.randn(6, 4)
    with untouched(model):
        report = swept(model, x, operation="scale(1)")
        noisy = [swept(model, x, operation="noise(1.0)").rows for _ in range(2)]
    assert [row["output_change"] for row in report.rows] == [0.0] * 4 and model.training
    assert report.totals["verdict"] == "None of 4 modules changes the output when edited by scale(1)"
    assert noisy[0] == noisy[1] and all(row["output_change"] > 0 for row in noisy[0])
    assert not any("noise:" in note for note in report.meta["notes"])


@pytest.mark.sweep
def test_a_loss_ranks() -> None:
    """By a function of output and target, by a name, and the one that the model itself returns."""
    torch.manual_seed(0)
    model, x = Planted.made()
    target = torch.tensor([1, 2, 0])
    step = Step(loss=nn.CrossEntropyLoss(), target=target)
    report = SweepRun(run_of(model, x, step), Sweep()).report()
    for row in report.rows:
        logits = by_hand(model, row.fqn, torch.zeros_like, x)
        loss = -(logits - logits.logsumexp(1, keepdim=True))[range(3), target].mean()
        assert row["loss"] == pytest.approx(loss.item(), rel=1e-9)
    effects = [abs(row["loss_change"]) for row in report.rows if not row["bottleneck"]]
    assert effects == sorted(effects, reverse=True) and " the loss" in report.totals["verdict"]
    assert swept(model, x, step=Step(loss="mean")).rows[0]["loss"] is not None

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"loss": self.lin(x).square().mean(), "logits": self.lin(x)}

    (row,) = swept(Own(), torch.ones(2, 3)).rows
    assert row["loss"] == 0 and row["output_change"] == 1 and row["loss_change"] < 0


def test_the_callers_own_edits_stay_in_each_run() -> None:
    """As for causal tracing: noise on the embedding, and what brings the clean output back."""
    model, x = Planted.made()
    report = SweepRun(run_of(model, x), Sweep(), edits=["embed:output=scale(2)"]).report()
    model.embed.register_forward_hook(lambda m, a, y: 2 * y)
    base = model(x).detach()
    for row in report.rows:
        if row.fqn != "embed":
            assert row["output_change"] == pytest.approx(relative(base, by_hand(model, row.fqn, torch.zeros_like, x)))


class Shaky(nn.Module):
    """Multiplies its output by a factor, in the second call alone or, if it is NaN, in all."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.lin, self.factor, self.calls = nn.Linear(3, 3), factor, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y: Tensor = self.lin(x)
        return y * self.factor if self.calls == 2 or math.isnan(self.factor) else y


def test_a_model_that_is_broken_or_random_is_said_first() -> None:
    x = torch.randn(2, 3)
    for logit, what in (("", "the output"), ("1", "logit 1")):
        broken = swept(Shaky(math.nan), x, logit=logit).totals["verdict"]
        assert broken.startswith(f"The ranking is meaningless: {what} is not finite even in the unchanged model")
        report = swept(Shaky(1e3), x, logit=logit)
        assert f"None of 1 module changes {what} when zeroed by more than a second run" in report.totals["verdict"]
        assert f"noise: a second run of the unchanged model changes {what} by" in str(report.meta["notes"])
