"""Hugging Face: `Trainer(callbacks=[HookcliCallback(every=100)])`."""

from __future__ import annotations

from typing import Self

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise ImportError(
        "hookcli.record.integrations.huggingface needs transformers: pip install 'hookcli[huggingface]'"
    ) from error

from torch import nn

from hookcli.record.model_recording import RecordingCallback


class HookcliCallback(RecordingCallback, TrainerCallback):
    """Records `trainer.train()` and its evaluations. See RecordingCallback for its settings.

    The Trainer reports no exceptions to callbacks, so after one the record ends with the program or the next training;
    inside a `with` block of the callback it ends at once.
    """

    def on_train_begin(self, *args: object, model: nn.Module, **others: object) -> None:
        self._start(model)

    def on_train_end(self, *args: object, **others: object) -> None:
        self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.stop(error)
