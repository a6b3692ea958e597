"""A program is warned as without hookcli: of the same lines, which filters by module go by, and as often."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from observing import observing
from support import each_once

from hookcli.hooks.option_values import FURTHER_PROBES

HEAD = """
import warnings
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

BACKWARD = """
model.register_full_backward_hook(lambda *args: None)
for _ in range(3):
    model(torch.randn(3, 2)).sum().backward()
    torch.autograd.backward(model(torch.randn(3, 2)).sum())
    optimizer.step()
"""
OWN_FUNCTION = """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        warnings.warn("here")
        warnings.warn("forward", stacklevel=2)  # a line of PyTorch's before 2.14
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        warnings.warn("backward", stacklevel=5)
        return grad * 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model

    def forward(self, x):
        return Own.apply(self.inner(x))


net = Net()
for _ in range(3):
    net(torch.randn(3, 2)).sum().backward()
    optimizer.step()
"""
FUNCTIONS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        y = self.inner(x)
        y.grad
        return F.softmax(y) + F.mse_loss(y, y[:1]) + self.helper(y)

    def helper(self, y):
        warnings.warn("a helper", stacklevel=2)
        return torch.stack([F.log_softmax(y), F.softmin(y)]).sum()


net = Net()
for _ in range(3):
    net(torch.randn(3, 2)).sum().backward()
"""
LOADER = """
def collate(items):
    warnings.warn("a batch", stacklevel=5)
    return torch.stack(items)


for batch in torch.utils.data.DataLoader(torch.randn(3, 2), collate_fn=collate):
    model(batch)
"""
OPTIMIZERS = """
class Own(torch.optim.SGD):
    def step(self, closure=None):
        warnings.warn("a step", stacklevel=5)
        return super().step(closure)


def add():
    parameter = nn.Parameter(torch.ones(1))
    optimizer.add_param_group({"params": [parameter, parameter]})


own = Own(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
for _ in range(2):
    scaler.scale(model(torch.randn(3, 2)).sum()).backward()
    scaler.step(own)
    scaler.update()
add()
"""
FAST_WEIGHTS = """
slow = nn.Parameter(torch.ones(1, 2))
optimizer = torch.optim.SGD([slow], lr=0.1)
for _ in range(3):
    model._parameters["weight"] = slow * 2
    model(torch.randn(3, 2)).sum().backward()
    model.weight.grad
    optimizer.step()
"""
PROGRAMS = {
    "fast weights": FAST_WEIGHTS,
    "backward": BACKWARD,
    "own function": OWN_FUNCTION,
    "functions": FUNCTIONS,
    "loader": LOADER,
    "optimizers": OPTIMIZERS,
}
PLANS: dict[str, dict[str, Any]] = {
    "unrecorded": {"every": 10**6, "start": 10**6},
    "recorded": {},
    "judged": {"check": True},
    "operators": {"ops": "functions"},
    "capabilities": {"probes": FURTHER_PROBES},
    "searched": {"first_bad": "report", "timed": True},
}


def warned_of(source: str) -> list[tuple[str, str, int]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        exec(compile(HEAD + source, "program.py", "exec"), {"__name__": "program"})
    return [(str(one.message).split("\n")[0][:60], one.filename, one.lineno) for one in caught]


@pytest.mark.parametrize(("program", "plan"), each_once(PROGRAMS, PLANS))
def test_warnings_are_those_of_a_run_without_hookcli(program: str, plan: str) -> None:
    source = PROGRAMS[program]
    alone = warned_of(source)
    assert any(file == "program.py" for _, file, _ in alone)
    with observing(**PLANS[plan]) as seen:
        observed = warned_of(source)
    assert not seen.errors
    assert observed == alone


@pytest.mark.parametrize(("program", "plan"), each_once(["backward", "functions"], PLANS))
def test_a_filter_by_module_makes_them_errors(program: str, plan: str) -> None:
    with observing(**PLANS[plan]), warnings.catch_warnings():
        warnings.filterwarnings("error", module="program")
        with pytest.raises(UserWarning):
            exec(compile(HEAD + PROGRAMS[program], "program.py", "exec"), {"__name__": "program"})
