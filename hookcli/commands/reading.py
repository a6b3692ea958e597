"""Commands that read tensors from files share how tensors are chosen, and how progress is shown."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli.commands.progress import Progress
from hookcli.table.formatting import size
from hookcli.table.names import around, checked_filter
from hookcli.tensors.files.statistics import Told
from hookcli.tensors.files.stored import StoredTensor


def matching(tensors: Sequence[StoredTensor], pattern: str | None) -> list[StoredTensor]:
    """The tensors that --match names, themselves or by a module around them. Raises UsageError if there are none."""
    if pattern is None:
        return [*tensors]
    names = {owner: "" for tensor in tensors for owner in (tensor.name, *around(tensor.name)) if owner}
    matches = checked_filter(pattern, None, names)
    return [t for t in tensors if any(matches(name, "") for name in (t.name, *around(t.name)) if name)]


class Position:
    """Shows which tensor is read, and how many of all bytes were."""

    def __init__(self, progress: Progress, tensors: Sequence[StoredTensor]) -> None:
        self._read, self._name = 0, ""
        whole = size(sum(tensor.nbytes for tensor in tensors))
        progress.stage("reading")
        progress.follow(lambda: f"{size(self._read)} of {whole} · {self._name}")

    def __call__(self, tensor: StoredTensor) -> Told:
        self._name = tensor.name
        return self._tell

    def _tell(self, nbytes: int) -> None:
        self._read += nbytes
