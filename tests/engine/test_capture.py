"""capture and watch: what is put back, what is reported when something goes wrong."""

from __future__ import annotations

import sys
from typing import Any

import forks
import pytest
import torch
from support import Hand, untouched
from torch import Tensor, nn

import hookcli
from hookcli.engine.capture import capture
from hookcli.engine.step import Step
from hookcli.errors import ModelError, PluginError, UsageError
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.activations import ActivationsProbe
from hookcli.record.watch import watch


class Fails(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error
        self.first, self.norm, self.bad = nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x))
        if self.error is not RuntimeError:
            raise self.error("stop")
        return self.bad(y)


def test_a_crash_names_the_module_and_reports_what_was_seen() -> None:
    model = Fails(RuntimeError)
    with untouched(model), pytest.raises(ModelError) as caught:
        capture(model, torch.ones(5, 2), ["activations", "shapes"])
    assert str(caught.value).startswith("bad (Linear) failed on input 5x3: it takes 4 features, got 3\n")
    assert "test_capture.py" in str(caught.value).splitlines()[1] and "forward" in str(caught.value)
    activations, shapes = caught.value.reports
    assert [row.fqn for row in activations.rows] == ["first", "norm"] and activations.meta["complete"] is False
    assert [row.fqn for row in shapes.rows] == ["", "first", "norm", "bad"] and shapes.rows[3]["output_shape"] is None


def test_an_interrupt_passes_through_with_what_was_seen() -> None:
    model = Fails(KeyboardInterrupt)
    with untouched(model), pytest.raises(KeyboardInterrupt) as caught:
        capture(model, torch.ones(5, 2), ["activations"])
    assert [row.fqn for row in caught.value.reports[0].rows] == ["first", "norm"]  # type: ignore[attr-defined]


def test_batch_norm_in_training_is_put_back() -> None:
    model, x = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).train(), torch.randn(8, 2)
    for probe in ("activations", "grads"):
        with untouched(model):
            capture(model, x, [probe])


def test_random_numbers_are_put_back_and_drawn_as_without_hooks() -> None:
    model, x = nn.Dropout(0.5).train(), torch.ones(100)
    torch.manual_seed(0)
    expected = int((model(x) == 0).sum())
    torch.manual_seed(0)
    with untouched(model):
        report = capture(model, x, ["activations"])[0]
    assert report.rows[0]["zeros"] == expected


def test_several_probes_share_a_run() -> None:
    reports = capture(Hand(), torch.ones(1, 2), ["shapes", "inputs", "activations", "grads"], loss="mean")
    assert [r.probe for r in reports] == ["shapes", "inputs", "activations", "grads"]
    assert all(r.rows and r.meta["complete"] and r.meta["mode"] == "train" for r in reports)


@pytest.mark.parametrize("inputs", [torch.ones(1, 2), (torch.ones(1, 2),), {"x": torch.ones(1, 2)}])
def test_inputs_come_in_three_forms(inputs: Any) -> None:
    assert capture(Hand(), inputs, ["activations"])[0].rows[0]["mean"] == 6.0


def test_a_loss_of_ones_own() -> None:
    report = capture(Hand(), torch.ones(1, 2), ["grads"], loss=lambda out: out.pow(2).sum())[0]
    assert report.meta["loss_value"] == 36.0


@pytest.mark.parametrize(
    ("loss", "said"),
    [(lambda out: out, "one element"), (lambda out: out.detach().sum(), "requires grad"), (lambda out: 3, "a int")],
)
def test_a_loss_that_cannot_be_differentiated(loss: Any, said: str) -> None:
    model = Hand()
    with untouched(model), pytest.raises(UsageError, match=said):
        capture(model, torch.ones(3, 2), ["grads"], loss=loss)


def test_watch_looks_at_a_training_step_and_leaves_it_be() -> None:
    model = Hand()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, ["activations", "grads"]) as seen:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    activations, grads = seen.reports()
    assert activations.rows[0]["mean"] == 6.0 and grads.rows[0].fqn == "out.weight"
    assert model.out.weight.grad is not None and not torch.equal(model.out.weight, torch.full((1, 2), 3.0))


def test_a_probe_of_ones_own_takes_the_same_way() -> None:
    class Biggest(ActivationsProbe):
        name = "biggest"

        def attach(self, session: HookSession) -> None:
            self.session, self.seen = session, []
            session.forward(self.see)

        def see(self, event: HookEvent) -> None:
            self.seen.append(event.output.max())
            super()._see(event)

    report = capture(Hand(), torch.ones(1, 2), [Biggest()])[0]
    assert (report.probe, len(report.rows)) == ("biggest", 4)


def test_costs_are_those_of_one_forward_whatever_else_runs() -> None:
    model, x = Hand(), torch.ones(5, 2)
    alone = capture(model, x, "shapes")[0].totals["macs"]
    assert capture(model, x, ["shapes", "grads"], step=Step(passes=2))[0].totals["macs"] == alone == 30


def test_the_callers_graph_and_gradients_are_left_alone() -> None:
    model, leaf = Hand(), torch.ones(1, 2, requires_grad=True)
    h = leaf * 2
    capture(model, h, ["grads"], loss="sum")
    assert leaf.grad is None
    h.sum().backward()
    assert torch.equal(leaf.grad, 2 * torch.ones(1, 2))  # type: ignore[arg-type]


def test_buffers_that_are_lazy_overlapping_or_set_in_forward() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LazyBatchNorm1d()
            self.register_buffer("wide", torch.ones(1).expand(4))
            self.register_buffer("last", None)

        def forward(self, x: Tensor) -> Tensor:
            self.last = x
            return self.norm(x)

    model = Keeps()
    capture(model, torch.randn(3, 4), ["activations"])
    assert model.last is None and model.wide.shape == (4,)


def test_a_failing_probe_is_the_probes_fault() -> None:
    class Bad(ActivationsProbe):
        name = "bad"

        def rows(self) -> list[Any]:
            raise ZeroDivisionError("mine")

    with pytest.raises(PluginError, match=r"probe .bad. failed: ZeroDivisionError: mine"):
        capture(Hand(), torch.ones(1, 2), [Bad()])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss": "nll"}, "unknown loss 'nll'; choose from: sum, mean, cross-entropy, or your own function"),
        ({"backward_vector": "zeros"}, "unknown backward_vector 'zeros'"),
    ],
)
def test_unknown_names(settings: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        capture(Hand(), torch.ones(1, 2), "grads", step=Step(**settings))
    with pytest.raises(UsageError, match=r"needs an nn\.Module, not int"):
        capture(3, torch.ones(1, 2))  # type: ignore[arg-type]


def test_a_padding_mask_makes_nested_tensors_on_the_fused_path() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    mask = torch.tensor([[False, False, True], [False, True, True]])
    report = capture(model, {"src": torch.randn(2, 3, 8), "src_key_padding_mask": mask}, ["activations"])[0]
    inner = next(row for row in report.rows if row.fqn == "layers.0")
    assert inner["shape"] == [2, -1, 8] and inner["numel"] == 3 * 8


def test_importing_hookcli_is_lazy() -> None:
    code = "import sys, hookcli, hookcli.cli; sys.exit('torch' in sys.modules or 'importlib.metadata' in sys.modules)"
    assert forks.run([sys.executable, "-c", code], fresh=True, check=False).returncode == 0
    assert hookcli.capture is capture
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hookcli.nothing  # noqa: B018
