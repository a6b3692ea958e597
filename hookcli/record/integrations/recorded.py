"""What the callbacks of all frameworks do: a record from the begin of a training to its end."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from hookcli.record.observe.recording import Recording
from hookcli.system.escaping import shell_path
from hookcli.system.streams import say


class Recorded:
    """`settings`: those of `hookcli.watch` around a training, such as `every=100` and `output`.

    `recording` is the one of the last training, None before; None too in a process that records nothing, since another
    is the first of several. Raises TypeError for a setting that there is not, and UsageError, when the training begins,
    for one with a wrong value.
    """

    def __init__(self, **settings: Any) -> None:
        inspect.signature(Recording).bind(None, **settings)
        self.recording: Recording | None = None
        self._settings = settings

    def stop(self, error: BaseException | None = None) -> None:
        """End the record, with the exception that ended the training. Nothing happens where it has ended."""
        if self.recording is not None:
            self.recording.stop(error)

    def _start(self, model: nn.Module) -> None:
        self.stop()  # a training before, of whose end nobody told
        try:
            self.recording = Recording(model, **self._settings)
        except OSError as error:  # no reason to lose a training
            say(f"warning: can't write {error.filename}: {error.strerror}; the training is not looked at")
            self.recording = None
            return
        self.recording.start()
        say(f"the training is recorded: hookcli show {shell_path(self.recording.path)}")

    def __getstate__(self) -> dict[str, Any]:
        """Settings alone: a callback that goes to another process records there."""
        return vars(self) | {"recording": None}
