"""Small models for Lightning, and a Trainer that prints nothing."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    """Automatic optimization: Lightning hands the forward and backward passes to `optimizer.step` as a closure."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU())
        self.head = nn.Linear(8, 3)
        self.logged: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))

    def training_step(self, batch: Any, number: int) -> Tensor:
        loss = loss_of(self, batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("validation", loss_of(self, batch))

    def on_train_batch_end(self, *about: Any) -> None:
        self.logged.append(self.trainer.callback_metrics["loss"].item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return adam(self)


class Manual(Net):
    """Each batch is a step."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, number: int) -> None:
        loss = loss_of(self, batch)
        self.log("loss", loss)
        self.manual_backward(loss)
        self.optimizers().step()
        self.optimizers().zero_grad()


class Gan(pl.LightningModule):
    """Two models with an optimizer each, by turns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.critic, self.maker = nn.Sequential(nn.Linear(4, 1)), nn.Linear(4, 4)

    def training_step(self, batch: Any, number: int) -> None:
        x, _ = batch
        with_critic, with_maker = self.optimizers()
        self._step(with_critic, self.critic(x), 1.0)
        self._step(with_maker, self.critic(self.maker(x)), 0.0)

    def _step(self, optimizer: Any, judged: Tensor, truth: float) -> None:
        optimizer.zero_grad()
        self.manual_backward(binary_cross_entropy_with_logits(judged, torch.full_like(judged, truth)))
        optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.critic.parameters(), 0.1), torch.optim.SGD(self.maker.parameters(), 0.1)]


class Fails(Net):
    error: BaseException = KeyError("lost")

    def on_train_batch_start(self, batch: Any, number: int) -> None:
        if number == 2:
            raise self.error


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return cross_entropy(model(x), y)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def batches(rows: int = 24) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(rows, 4, generator=generator), torch.randint(3, (rows,), generator=generator))
    return DataLoader(data, 4)


def fit(model: pl.LightningModule, *callbacks: pl.Callback, **settings: Any) -> pl.Trainer:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(**{"max_epochs": 2, "accelerator": "cpu", "callbacks": list(callbacks), **quiet, **settings})
    trainer.fit(model, batches(), batches(8) if hasattr(model, "validation_step") else None)
    return trainer
