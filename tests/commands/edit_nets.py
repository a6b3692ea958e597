"""Models for edits from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hookcli.table import Report

Cli = Callable[..., Any]


SMALL = """
import torch
from torch import nn


class Small(nn.Module):
    '''Gradients of weight [1, 2, 3] by hand; drop, a module that never runs, and one that gets integers.'''

    def __init__(self):
        super().__init__()
        self.lin, self.relu, self.out = nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1, bias=False)
        self.embed, self.drop, self.unused = nn.Embedding(4, 2), nn.Dropout(0.5), nn.Linear(2, 2)
        with torch.no_grad():
            self.lin.weight.fill_(1.0)
            self.lin.bias.zero_()
            self.out.weight.fill_(1.0)

    def forward(self, x):
        found = self.embed(torch.arange(len(x)) % 4) * 0
        return self.out(self.drop(self.relu(self.lin(x))) + found)


class Weight(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 1, bias=False)

    def forward(self, x):
        return self.lin(x * torch.tensor([1.0, 2.0, 3.0]))


class Frees(Weight):
    def forward(self, x):
        y = super().forward(x)
        y.sum().backward()
        return y


class Frozen(Weight):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)


class Hooked(Weight):
    def __init__(self, where):
        super().__init__()
        if where == "forward":
            self.lin.register_forward_hook(self.boom)
        elif where == "backward":
            self.lin.register_forward_hook(lambda m, a, o: o.register_hook(self.boom) and None)
        else:
            self.lin.register_full_backward_hook(self.boom)

    def boom(self, *details):
        raise ValueError("from a hook of one's own")


class Legacy(Weight):
    def __init__(self):
        super().__init__()
        self.lin.register_backward_hook(lambda m, i, o: None)


def shorter(x):
    return x[..., :1]

def fails(x):
    raise ValueError("not today")

def halves(x):
    return x.half()

def overwrites(x):
    return x.mul_(2)

def nothing(x):
    pass

number = 3
"""


NET = ("small.py:Small", "--input", "2x3", "--fill", "ones")


def report(cli: Cli, *argv: str) -> Report:
    ran = cli(*argv, "--format", "json")
    assert ran.code == 0, ran.err
    return Report.from_dict(json.loads(ran.out)["reports"][0])
