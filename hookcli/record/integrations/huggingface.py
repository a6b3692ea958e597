"""Hugging Face: `Trainer(callbacks=[HookcliCallback(every=100)])`."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    raise ImportError(
        "hookcli.record.integrations.huggingface needs transformers: pip install 'hookcli[huggingface]'"
    ) from error

from torch import nn

from hookcli.record.integrations.recorded import Recorded


class HookcliCallback(Recorded, TrainerCallback):
    """Records `trainer.train()`, its evaluation too, in the process of world rank zero. See Recorded for its settings.

    The Trainer tells callbacks of no exception. Its record ends with the program, then, or with the next training; at
    once where it is trained in a `with` block of the callback.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, model: nn.Module, **others: Any
    ) -> None:
        if state.is_world_process_zero:
            self._start(model)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(error)
