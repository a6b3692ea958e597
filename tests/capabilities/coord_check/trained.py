"""Models whose width is an argument, as a file that the command line names."""

from __future__ import annotations

NETS = '''
import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.inp, self.hidden, self.out = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 4)
        self.double()

    def forward(self, x):
        return self.out(self.hidden(self.inp(x).relu()).relu())


def mu(width=16):
    """In muP over a width of 16: what comes out of a wide matrix of fixed fan-out is smaller by sqrt(width / 16)."""
    model = MLP(width)
    with torch.no_grad():
        model.out.weight.div_((width / 16) ** 0.5)
    return model


def mu_adam(model, lr=1e-2):
    """Adam as in muP: weights whose fan-in is the width learn at a rate divided by it."""
    wide = [model.hidden.weight, model.out.weight]
    others = [p for p in model.parameters() if all(p is not w for w in wide)]
    return torch.optim.Adam([{"params": wide, "lr": lr * 16 / model.hidden.in_features}, {"params": others}], lr=lr)


def depth_alone(width=16):
    return MLP(16)


def adam_of(params, lr):
    return torch.optim.Adam(params, lr=lr)


def no_rate(model):
    return torch.optim.SGD(model.parameters(), lr=0.25)


def nothing(model):
    return None


class Odd(nn.Module):
    """A part that is called twice, one with several outputs, one of whole numbers, one that is not called, and more."""

    def __init__(self, width=16):
        super().__init__()
        self.twice, self.several, self.whole = nn.Linear(width, width), Several(), Whole()
        self.unused, self.frozen, self.narrow = nn.Linear(2, 2), nn.Linear(8, width), nn.Linear(width, 4)
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(width)
        self.only = nn.ModuleDict({} if width > 32 else {"small": nn.Identity()})
        self.frozen.requires_grad_(False)
        self.masks = Masks()

    def forward(self, x):
        x = self.masks(self.frozen(x))[0]
        for part in self.only.values():
            x = part(x)
        x = self.norm(self.drop(self.twice(self.twice(x).relu_())))
        self.whole(x)
        return self.narrow(self.several(x)["sum"])


class Several(nn.Module):
    def forward(self, x):
        return {"sum": x + 1, "others": (x * 2, [x.abs(), "text"])}


class Whole(nn.Module):
    def forward(self, x):
        return (x > 0).long()


class Masks(nn.Module):
    def forward(self, x):
        return x, torch.full((2, 2), -torch.inf)


class Experts(nn.Module):
    """The number of rows that the expert gets depends on the weights."""

    def __init__(self, width=16):
        super().__init__()
        self.inp, self.expert, self.calls = nn.Linear(8, width), nn.Linear(width, width), 0

    def forward(self, x):
        self.calls += 1
        x = self.inp(x)
        return self.expert(x[self.calls :]).mean() + x.mean()


def same(width=16):
    torch.manual_seed(3)
    return MLP(width)


class Restless(MLP):
    def forward(self, x):
        return super().forward(x) + torch.frombuffer(bytearray(__import__("os").urandom(4)), dtype=torch.uint8)


class Blows(MLP):
    """Not finite from the second step on, from a width of 32 on."""

    calls, least = 0, 32

    def forward(self, x):
        self.calls += 1
        huge = 1e308 if self.calls > 2 and self.hidden.in_features >= self.least else 1.0
        return super().forward(x) * huge * huge


class BlowsAlways(Blows):
    least = 0


class Lost(MLP):
    def forward(self, x):
        return super().forward(x) * torch.nan


class Stops(MLP):
    """Ctrl-C in the second seed."""

    def forward(self, x):
        if torch.initial_seed() == 1:
            raise KeyboardInterrupt
        return super().forward(x)


def given(width=16):
    return MLP(width), torch.ones(2, 8, dtype=torch.float64)


def wide_input(width=16):
    return nn.Linear(width, 4), torch.ones(2, width)


def frozen(width=16):
    return MLP(width).requires_grad_(False)


def lazy(width=16):
    return nn.Sequential(nn.LazyLinear(width), nn.ReLU(), nn.LazyLinear(4))


def batches():
    return [(torch.arange(32, dtype=torch.float64).view(4, 8).sin(), torch.tensor([0, 1, 2, 3]))]


data = batches()


def labels():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 8, dtype=torch.float64, generator=generator)
    return [(x, torch.randint(4, (32,), generator=generator))]


labelled = labels()
'''
