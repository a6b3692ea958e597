"""Models with lines that torch.compile can't trace: a comment on such a line names the check that must find it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

WORDS: dict[str, str] = {}  # which grows, so that its length is a guard that fails


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(8, 8), nn.Linear(8, 4)
        self.calls = ""

    def part(self, x: Tensor) -> Tensor:
        return self.fc(x).relu()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.part(x))


class Prints(Plain):
    def part(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        print("shape")  # HK039: print is built in
        return y.relu()


class Item(Plain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x)
        if y.abs().mean().item() > -1:  # HK039: reads a tensor's value
            y = y + 1
        return self.out(y)


class Branch(Plain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x)
        if y.sum() > 0:  # HK039: branches on a tensor's value
            y = y + 1
        return self.out(y)


class Timed(Plain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x)
        _ = time.time()  # HK039: time.time
        return self.out(y)


class Array(Plain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x)
        y = y * float(y.detach().sum().numpy().tolist() > -1e9)  # HK039: tolist
        return self.out(y)


@torch.compiler.disable
def left_out(x: Tensor) -> Tensor:
    return x + 1


class LeftOut(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(left_out(self.part(x)))  # HK039: left_out is left out by torch.compiler.disable


class Loop(Plain):
    def forward(self, x: Tensor) -> Tensor:  # HK042: in a loop
        for _ in range(2):
            x = self.fc(x)
            print("again")
        return x


class Tries(Plain):
    def forward(self, x: Tensor) -> Tensor:  # HK042: time.time
        try:
            x = self.fc(x)
            _ = time.time()
        except ValueError:
            pass
        return self.out(x)


class Counts(Plain):
    """Its text grows by a letter in each call, until it has four."""

    most = 4

    def forward(self, x: Tensor) -> Tensor:  # HK040: self.calls ==
        if len(self.calls) < self.most:
            self.calls = self.calls + "x"
        return self.out(self.part(x))


class CountsOn(Counts):
    most = 100


class OneSize(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.part(x)).reshape(4, 4)


def marked(net: type[nn.Module]) -> dict[tuple[str, str], str]:
    """The places in this file that belong to a class, by check, with the words after them."""
    lines = Path(__file__).read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(f"class {net.__name__}("))
    end = next((n for n, line in enumerate(lines[begin + 1 :], begin + 1) if line and line[0] not in " )#"), len(lines))
    found: dict[tuple[str, str], str] = {}
    for number in range(begin, end):
        _, _, mark = lines[number].partition("  # HK")
        if mark:
            check, _, words = mark.partition(": ")
            found[f"HK{check}", f"{Path(__file__).name}:{number + 1}"] = words
    return found


def example() -> Any:
    torch.manual_seed(0)
    return torch.randn(4, 8)
