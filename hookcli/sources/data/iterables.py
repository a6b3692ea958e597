"""Input that a program of one's own makes: any iterable of batches, such as a DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hookcli.errors import ModelError, UsageError, UserCode, about_option, class_name, in_brief, refuse_coroutine
from hookcli.sources.base import Recipe
from hookcli.sources.data.base import ITEMS, Batches, Data, wrong
from hookcli.system.importing import load_object
from hookcli.tensors.containers import holds_tensors

_ONCE = ("builtins", "itertools", "torch")
"""Packages whose iterators can't begin again, such as generators, or the iterator of a DataLoader."""


def iterable_input(spec: str, batches: int | None) -> Data:
    """The batches of the object that `--data module:name` or `--data file.py:name` names.

    An iterable of batches, a Dataset (its items are collated into batches), one batch, or a class or function that
    returns one of these. Raises UsageError for an unknown name.
    """
    with about_option("data"):
        target = load_object(spec)
    option = f"--data {spec}"
    if isinstance(target, Iterator) and type(target).__module__.partition(".")[0] in _ONCE:
        why = "can be read only once, but a command may need it again; name a function that returns one"
        raise UsageError(f"{option}: a {class_name(target)} {why}", option="data")

    def open_(recipe: Recipe, size: int | None) -> Batches:
        with UserCode(lambda error: ModelError(f"{option}: failed: {in_brief(error)}")):
            makes = isinstance(target, type) or (callable(target) and not _has_batches(target))
            made = target() if makes else target
        refuse_coroutine(made, spec)
        if isinstance(made, Dataset):
            made = DataLoader(made, batch_size=size or ITEMS)
        elif size is not None:
            raise wrong("batch-size", f"{option} chooses the size of its batches; leave it out")
        pair = isinstance(made, tuple) and bool(made) and isinstance(made[0], Tensor)
        alone = isinstance(made, (Tensor, Mapping)) or not _has_batches(made)
        each = [made] if pair or (alone and holds_tensors(made)) else made  # one batch in place of several
        if not _has_batches(each):
            raise UsageError(f"{option}: gave {class_name(made)}, not an iterable of batches", option="data")
        total = None
        with suppress(Exception):  # a DataLoader of an IterableDataset has no length, and says so by a TypeError
            total = len(each)
        return Batches(each, total)

    return Data(option, open_, batches)


def _has_batches(value: object) -> bool:
    return isinstance(value, (Iterable, Dataset)) or hasattr(value, "__getitem__")
