"""Models that fail without gradients run with them; every other model runs without, where nothing needs any."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import assert_stats, each_once, float64_stats, untouched
from torch import Tensor, nn

from hookcli import capture, check
from hookcli.capabilities.sweep.run import SweepRun
from hookcli.capabilities.sweep.trials import Sweep
from hookcli.engine.lockstep.compare import compare
from hookcli.engine.lockstep.side import Side
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.step import Step
from hookcli.errors import ModelError
from hookcli.probes.activations import ActivationsProbe, InputsProbe
from hookcli.table import Report


class Net(nn.Module):
    """Notes for each call whether gradients were on."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.modes = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 1)), list[bool]()

    def forward(self, x: Tensor) -> Any:
        self.modes.append(torch.is_grad_enabled())
        return self.net(x)


class Forces(Net):
    """The energy and the forces of atoms, as the gradient of that energy."""

    def forward(self, x: Tensor) -> Any:
        position = x.detach().requires_grad_()
        energy = super().forward(position).sum()
        (force,) = torch.autograd.grad(energy, position, create_graph=self.training)
        return {"energy": energy, "forces": -force}


class Backward(Net):
    """A step of descent on its own input by backward()."""

    def forward(self, x: Tensor) -> Any:
        moved = x.detach().clone().requires_grad_()
        super().forward(moved).square().sum().backward()
        assert moved.grad is not None
        return self.net(moved.detach() - moved.grad)


class Refuses(Net):
    """Says itself that it needs gradients."""

    def forward(self, x: Tensor) -> Any:
        if not torch.is_grad_enabled():
            raise ValueError("call me with autograd enabled")
        return super().forward(x)


class Asserts(Net):
    """Asserts, without a word, that its first layer records a graph."""

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        assert y.requires_grad
        return y


class Frozen(Forces):
    """Differentiates in respect of nothing, with gradients as without."""

    def forward(self, x: Tensor) -> Any:
        return torch.autograd.grad(self.net(x.detach()).detach().sum(), x)


NEED = [Forces, Backward, Refuses, Asserts]
SAID = "on, since the model fails without them"


@pytest.mark.parametrize(("kind", "probe"), each_once(NEED, ["activations", "inputs", "flow", "shapes", "attention"]))
def test_each_probe_sees_the_whole_run(kind: type[Net], probe: str) -> None:
    model, x = kind().eval(), torch.randn(8, 3)
    with untouched(model):
        report = capture(model, x, probes=probe)
    assert not report.meta.get("error")
    assert probe == "shapes" or report.meta["gradients"] == SAID  # its run has a graph, and costs nothing
    if probe == "activations":
        plain = model(x)
        for row in report.rows:
            if row.fqn == "":
                tensor = plain[row["path"][2:-2]] if row["path"] else plain
                assert_stats(row.stats, float64_stats(tensor.detach()))
        calls = [row for row in report.rows if row.fqn == "net.0"]
        assert len(calls) == (2 if kind is Backward else 1), "rows of the run that failed are left"


@pytest.mark.parametrize(
    ("kind", "settings"), each_once(NEED, [{}, {"ops": "functions"}, {"split_batch": True, "repeat": 2}])
)
def test_they_pass_the_checks(kind: type[Net], settings: Any) -> None:
    report = check(kind().train(), torch.randn(8, 3), **settings)
    assert not [one for one in report.findings if one.severity == "error" and one.check != "HK008"], report.findings
    assert report.meta["gradients"] == f"{SAID} in eval mode"


def test_a_fault_in_eval_mode_is_not_said_to_be_one_without_gradients() -> None:
    class Bad(Forces):
        def forward(self, x: Tensor) -> Any:
            found = super().forward(x)
            return found if self.training else {"forces": found["forces"] / 0}

    (one,) = check(Bad().train(), torch.randn(8, 3), select="HK003").findings
    assert one.message.startswith("in eval mode: 24 of 24 values of its output are infinite")


@pytest.mark.parametrize("kind", NEED)
def test_a_sweep_and_a_comparison(kind: type[Net]) -> None:
    model, x = kind().eval(), torch.randn(8, 3)
    swept = SweepRun(PreparedRun.of(model, x), Sweep()).report()
    assert swept.meta["gradients"] == SAID
    assert "net" in {row.fqn for row in swept.rows}
    sides = [Side(model, x), Side(kind().eval(), x)]
    with pytest.raises(ModelError):
        compare(*sides)
    assert compare(*sides, step=Step(gradients=True)).rows


def test_probes_that_are_made_already_begin_anew() -> None:
    model, x = Forces().eval(), torch.randn(8, 3)
    reports: list[Report] = capture(model, x, probes=[ActivationsProbe(), InputsProbe()])
    assert [len(report.rows) for report in reports] == [6, 5]


def test_other_models_run_without_gradients_once() -> None:
    model = Net().eval()
    report = capture(model, torch.randn(8, 3), probes="activations")
    assert model.modes == [False] and "gradients" not in report.meta


def test_a_model_that_fails_with_gradients_too_fails() -> None:
    with pytest.raises(ModelError, match="it differentiates a tensor that needs no gradient"):
        capture(Frozen().eval(), torch.randn(8, 3), probes="activations")


def test_an_error_of_another_kind_is_not_tried_again() -> None:
    class Wrong(Net):
        def forward(self, x: Tensor) -> Any:
            super().forward(x)
            raise ValueError("of another kind")

    model = Wrong().eval()
    with pytest.raises(ModelError, match="of another kind"):
        capture(model, torch.randn(8, 3), probes="activations")
    assert model.modes == [False]
