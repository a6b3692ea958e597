"""Lightning: `Trainer(callbacks=[HookcliCallback(every=100)])`."""

from __future__ import annotations

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer
    except ModuleNotFoundError as error:
        raise ImportError(
            "hookcli.record.integrations.lightning needs Lightning: pip install 'hookcli[lightning]'"
        ) from error

from hookcli.record.model_recording import RecordingCallback


class HookcliCallback(RecordingCallback, Callback):
    """Records `trainer.fit` and its validation. See RecordingCallback for its settings."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start(pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.stop(exception)
