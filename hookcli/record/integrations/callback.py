"""The base of all frameworks' callbacks: a record from the beginning of a training to its end."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from hookcli.record.model_recording import ModelRecording
from hookcli.system.escaping import shell_path
from hookcli.system.streams import say
from hookcli.system.torchrun import joined_world


class RecordingCallback:
    """Records a training with the `settings` of `hookcli.watch`, such as `every=100` and `output`.

    Each of several ranks records its part. `recording` is that of the last training; None before it. Raises TypeError
    for an unknown setting and, when the training begins, UsageError for an invalid value.
    """

    def __init__(self, **settings: Any) -> None:
        inspect.signature(ModelRecording).bind(None, **settings)
        self.recording: ModelRecording | None = None
        self._settings = settings

    def stop(self, error: BaseException | None = None) -> None:
        """End the record, with the exception that ended the training. Does nothing if it has ended."""
        if self.recording is not None:
            self.recording.stop(error)

    def _start(self, model: nn.Module) -> None:
        self.stop()  # an earlier training whose end was not reported
        try:
            self.recording = ModelRecording(model, **self._settings)
        except OSError as error:  # a record is no reason to lose a training
            say(f"warning: can't write {error.filename}: {error.strerror}; the training is not recorded")
            self.recording = None
            return
        self.recording.start()
        if joined_world().rank == 0:
            say(f"recording the training; see it with: hookcli show {shell_path(self.recording.record)}")

    def __getstate__(self) -> dict[str, object]:
        """Only the settings: a callback sent to another process records there."""
        return vars(self) | {"recording": None}
