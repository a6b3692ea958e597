"""Private names of torch.utils.data."""

from __future__ import annotations

from typing import Any

from hookcli.tensors.torch_private import private

NO_WAITING = "the time spent waiting for data is not known"

DataLoaderIterator: Any = private("torch.utils.data.dataloader", "_BaseDataLoaderIter", object, NO_WAITING)
"""The base class of a DataLoader's iterators, whose `__next__` waits for the next batch."""
