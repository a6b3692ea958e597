"""A training under hooks is the same bit for bit as one without, and no hook stays."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from capabilities.coord_check.trained import NETS
from support import equal, hooks_on, swept

from hookcli.capabilities.coord_check.optimizers import optimizer_maker
from hookcli.capabilities.coord_check.training import Plan
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.step import Step
from hookcli.errors import ModelError
from hookcli.system.importing import load_object


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)


def run_of(model: Any, x: torch.Tensor) -> PreparedRun:
    return PreparedRun.of(model, (x,), Step(backward=True, loss=lambda output: output.square().mean()))


@pytest.mark.parametrize(("net", "optimizer"), [("MLP", "adamw"), swept("MLP", "sgd"), ("Odd", "adam")])
def test_parameters_and_buffers_are_those_of_a_training_without_hooks(net: str, optimizer: str) -> None:
    torch.manual_seed(0)
    model: Any = load_object(f"nets.py:{net}")(16)
    x = torch.randn(6, 8, dtype=next(model.parameters()).dtype)
    plain, kept, make = copy.deepcopy(model), x.clone(), optimizer_maker(optimizer, 1e-2)
    before = hooks_on(model)
    torch.manual_seed(1)
    trained = Plan(make, 3).train(run_of(model, x), 16, 0, "")
    assert trained.steps == 3 and hooks_on(model) == before and torch.equal(x, kept)
    own = make(plain)
    for step in range(4):
        torch.manual_seed(1)  # the same dropout in each forward
        loss = plain(x).square().mean()
        if step < 3:
            own.zero_grad()
            loss.backward()
            own.step()
    assert equal(model.state_dict(), plain.state_dict())


def test_no_hook_stays_where_a_model_fails() -> None:
    model: Any = load_object("nets.py:MLP")(16)
    before = hooks_on(model)
    with pytest.raises(ModelError, match="at width=16: inp"):
        Plan(optimizer_maker("sgd", None), 1).train(run_of(model, torch.ones(2, 7)), 16, 0, "at width=16: ")
    assert hooks_on(model) == before


def test_a_model_is_gone_after_its_training() -> None:
    import gc
    import weakref

    model: Any = load_object("nets.py:MLP")(16)
    gone = weakref.ref(model)
    trained = Plan(optimizer_maker("adamw", None), 1).train(
        run_of(model, torch.ones(2, 8, dtype=torch.float64)), 16, 0, ""
    )
    del model
    gc.collect()
    assert gone() is None and trained.steps == 1
