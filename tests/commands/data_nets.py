"""A file of a user's own with models and data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hookcli.system.importing import load_object

BATCHED = '''
import gc
import weakref

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

SIZES = (4, 4, 3)
X = torch.randn(11, 3, 4, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 10, (11,), generator=torch.Generator().manual_seed(2))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.change = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.act = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.pool(self.act(self.bn(self.conv(self.change(x))))).flatten(1))

def loader():
    return list(zip(X.split(SIZES), Y.split(SIZES)))

def inputs():
    return X.split(SIZES)[0], X.split(SIZES)[1]

def lists():
    return list(X.split(SIZES))

def other_sizes():
    yield X[:2]
    yield X[:2, :, :3]

def fails_late():
    yield X[:4]
    yield X[:4]
    raise OSError("disk gone")

def wrong_channels():
    yield X[:4]
    yield X[:4, :1]

def dataset():
    return TensorDataset(X, Y)

def none_at_all():
    return iter(())

def number():
    return 3

def words():
    return ["a", "b"]

def arrays():
    """Yields arrays that PyTorch can take as they are, only as copies, and not at all."""
    x = X[:4].numpy()
    yield x
    flipped = x[::-1].astype(">f4")[::-1]
    flipped.flags.writeable = False
    yield flipped
    yield np.array(["a"])

begun = (x for x in [X])

def broken():
    raise KeyError("lost")

def keywords():
    return [{"x": X[:4], "labels": Y[:4]}, {"z": X[:4], "w": X[:4]}]

def counted():
    """Yields batches, and fails where more than two of them live."""
    alive = []
    for n in range(8):
        batch = torch.full((4, 3, 4, 4), float(n))
        alive.append(weakref.ref(batch))
        yield batch
        del batch
        gc.collect()
        assert sum(ref() is not None for ref in alive) <= 2, "batches are kept"

class Gate(nn.Module):
    """Channel 0 is never on, channel 1 in batches of a positive sum alone, channel 2 always."""
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x):
        sign = x.sum().sign()
        return self.act(torch.stack([-x.abs(), sign * x.abs(), x.abs() + 1], 1))

def signs():
    yield -torch.ones(8, 2)
    yield torch.ones(8, 2)

class Bias(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)

def nan_late():
    return [torch.ones(8, 3), torch.full((8, 3), float("nan"))]

def criterion(output, target):
    return (output.mean(1) - target).square().mean()
'''


def written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the file to a folder, which becomes the working directory."""
    (folder / "batched.py").write_text(BATCHED)
    monkeypatch.chdir(folder)
    return folder


def net() -> nn.Module:
    """The model as the commands build it."""
    torch.manual_seed(0)
    made: nn.Module = load_object("batched.py:Net")()
    return made


def loader() -> list[tuple[Tensor, Tensor]]:
    """The batches as the commands get them."""
    made: list[tuple[Tensor, Tensor]] = load_object("batched.py:loader")()
    return made
