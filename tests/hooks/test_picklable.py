"""Models that a program copies or saves while hooks are on them."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import forks
import torch
from torch import nn

import hookcli
from hookcli.hooks.session import HookSession
from hookcli.probes.grads import GradsProbe


class CopiesItself(nn.Module):
    """Makes its target network in its first forward, as BYOL does, and saves itself there."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.copies: list[nn.Module] = []
        self.saved = b""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.copies:
            self.copies.append(copy.deepcopy(self.online))
            self.saved = pickle.dumps(self.online)
        with torch.no_grad():
            target = self.copies[0](x)
        return self.online(x) - target


def test_copies_carry_nothing_that_works(tmp_path: Path) -> None:
    model, x = CopiesItself(), torch.randn(2, 4)
    with hookcli.watch(model, probes=["activations"]) as seen:
        model(x)
        copied = model.copies[0]
        calls = len(seen.reports()[0].rows)
        copied(x)
        assert len(seen.reports()[0].rows) == calls == 4  # the model, online and its two parts: not the copy's
    assert torch.equal(copied(x), model.online(x)) and torch.equal(pickle.loads(model.saved)(x), model.online(x))
    file = tmp_path / "saved.pkl"
    file.write_bytes(model.saved)
    load = f"import pickle, sys; pickle.load(open({str(file)!r}, 'rb')); assert 'hookcli' not in sys.modules"
    forks.run([sys.executable, "-c", load], check=True)


HANDED_ON = {
    "identity": nn.Identity(),
    "flatten": nn.Flatten(0),
    "dropout": nn.Dropout(0.5).eval(),
    "sequential": nn.Sequential(nn.Identity(), nn.Flatten(0)),
}


def test_what_is_handed_on_and_changed_in_place_changes_the_gradient_as_without_hooks() -> None:
    """A view loses its hook then, and is listed; what was handed on itself has the gradient of before the change."""
    for name, handing in HANDED_ON.items():
        torch.manual_seed(0)
        model = nn.ModuleDict({"a": nn.Linear(4, 4), "handing": handing})
        x = torch.randn(3, 4)

        def step(model: nn.ModuleDict = model, x: torch.Tensor = x) -> torch.Tensor:
            model.zero_grad()
            h = model["a"](x)
            model["handing"](h).relu_()
            (h * 3).pow(2).sum().backward()
            assert model["a"].weight.grad is not None
            return model["a"].weight.grad.clone()

        plain = step()
        probe = GradsProbe(of="outputs")
        with HookSession(model) as session:
            probe.attach(session)
            assert torch.equal(step(), plain), name
            listed = {item.fqn: item.reason for item in probe.skipped()}
        if name in ("flatten", "sequential"):
            assert "a view of what is changed in place" in listed["handing"], name
        rows = {row.fqn: row for row in probe.rows()}
        assert ("handing" in rows) != ("handing" in listed), name
