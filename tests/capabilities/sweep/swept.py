"""Models to sweep, and shorter ways to sweep them."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from hookcli import Step
from hookcli.capabilities.sweep.run import SweepRun
from hookcli.capabilities.sweep.trials import Sweep
from hookcli.engine.prepare import PreparedRun
from hookcli.table import Report, Row


class Layer(nn.Module):
    """Adds a branch to what it receives."""

    def __init__(self, width: int, attention: bool) -> None:
        super().__init__()
        self.attn = nn.Linear(width, width) if attention else nn.Identity()
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.drop(self.mlp(x))


class Planted(nn.Module):
    """Four layers on a residual stream, whose dimension 0 is written by layers.2.mlp alone, and read by logit 4."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 6)
        self.layers = nn.ModuleList(Layer(6, attention=True) for _ in range(4))
        self.head = nn.Linear(6, 5, bias=False)
        self.unused = nn.Linear(2, 2)
        with torch.no_grad():
            for layer in [self.embed, *(part for each in self.layers for part in (each.attn, each.mlp[2]))]:
                layer.weight[0] = layer.bias[0] = 0
            self.layers[2].mlp[2].weight[0] = 1
            self.head.weight[4] = torch.eye(6)[0]

    @classmethod
    def made(cls) -> tuple[Planted, Tensor]:
        torch.manual_seed(1)
        return cls().double().eval(), torch.randn(3, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(x))


def gpt2() -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=12, n_head=3, vocab_size=16, n_positions=8, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).double().eval(), torch.tensor([[3, 1, 4, 1, 5]])


def logits(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else cast(Tensor, output.logits)


def relative(a: Tensor, b: Tensor) -> float:
    return ((b - a).pow(2).sum().sqrt() / a.pow(2).sum().sqrt()).item()


def run_of(model: nn.Module, x: Any, step: Step | None = None) -> PreparedRun:
    return PreparedRun.of(model, (x,), step or Step())


def swept(model: nn.Module, x: Any, *, logit: str = "", step: Step | None = None, **plan: Any) -> Report:
    return SweepRun(run_of(model, x, step), Sweep(**plan), logit).report()


def rows_of(report: Report) -> dict[str, Row]:
    return {row.fqn: row for row in report.rows}


def by_rows(w: Tensor, top: int) -> Tensor:
    """Each row rounded to multiples of its largest magnitude over `top`, number by number."""
    rows = []
    for row in w.tolist():
        scale = max(map(abs, row)) / top
        rows.append([round(value / scale) * scale if scale else 0.0 for value in row])  # round: half to even
    return torch.tensor(rows, dtype=w.dtype)
