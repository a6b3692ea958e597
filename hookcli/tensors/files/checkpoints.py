"""Finds what a checkpoint holds: every value by its keys, and which of them are states of optimizers."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hookcli.table.formatting import counted
from hookcli.tensors.files.plain_objects import StandIn

STATE_DICTS = ("state_dict", "model_state_dict", "model")
"""Keys under which most programs keep the state dict of the model."""
_OPTIMIZER = {"state", "param_groups"}  # the keys of an optimizer's state dict
_DEEPEST = 20  # levels of dicts and lists


@dataclass(frozen=True, slots=True)
class Entry:
    """A value in a checkpoint, with its key in `owner` and the keys around that, joined with dots (`place`)."""

    place: str
    key: str
    value: object
    owner: object
    of_optimizer: bool

    @property
    def name(self) -> str:
        """All keys, joined with dots."""
        return f"{self.place}.{self.key}" if self.place else self.key


def entries(whole: object) -> Iterator[Entry]:
    """Every value in nested dicts, lists and objects: each container before what it holds, and once."""
    return _entries(whole, "", False, 0, {})


def _entries(owner: object, place: str, of_optimizer: bool, depth: int, seen: dict[int, object]) -> Iterator[Entry]:
    if depth == _DEEPEST or id(owner) in seen:
        return
    items = list(_items(owner))
    if items:
        seen[id(owner)] = owner
    of_optimizer = of_optimizer or (isinstance(owner, Mapping) and owner.keys() >= _OPTIMIZER)
    for key, value in items:
        entry = Entry(place, str(key), value, owner, of_optimizer)
        yield entry
        yield from _entries(value, entry.name, of_optimizer, depth + 1, seen)


def _items(value: object) -> Iterable[tuple[object, object]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, StandIn):
        return value.attributes.items()
    if isinstance(value, Namespace):  # one that a library has told PyTorch to make
        return vars(value).items()
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return enumerate(value)
    return ()


@dataclass(frozen=True, slots=True)
class Content:
    """The tensors of a checkpoint to show, by name, and a remark on where they are and what else there is."""

    tensors: dict[str, Tensor]
    remark: str = ""


def content(whole: object) -> Content:
    """The tensors of the model in a checkpoint, without the optimizers'.

    They are in the only dict that holds tensors, or in the one under a well-known key. Where there are several
    others, all of them are shown, under all of their keys.
    """
    if isinstance(whole, Tensor):
        return Content({"tensor": whole})
    held = [entry for entry in entries(whole) if isinstance(entry.value, Tensor)]
    of_model = [entry for entry in held if not entry.of_optimizer] or held
    place = _model_place(of_model)
    within = f"{place}." if place else ""
    shown = [entry for entry in of_model if f"{entry.place}.".startswith(within)]
    tensors: dict[str, Tensor] = {}
    for entry in shown:
        assert isinstance(entry.value, Tensor)
        tensors.setdefault(entry.name.removeprefix(within), entry.value)
    remarks = [f"the state dict under {place!r}"] if place else []
    if left_out := _left_out(len(held) - len(of_model), len(of_model) - len(shown)):
        remarks.append(f"{left_out} in the file")
    return Content(tensors, "; ".join(remarks))


def _left_out(of_optimizer: int, others: int) -> str:
    """The numbers of tensors that are not shown, in words; "" if all are."""
    words = [f"{counted(of_optimizer, 'tensor')} of the optimizer"] if of_optimizer else []
    if others:
        words.append(counted(others, "other tensor"))
    return " and ".join(words)


def _model_place(held: Sequence[Entry]) -> str:
    """The place of the dict that holds the model's tensors; "" where that is the whole, or can't be told."""
    number = Counter(entry.place for entry in held if not isinstance(entry.owner, Sequence))
    known = [place for place in number if place.rpartition(".")[2] in STATE_DICTS]
    inner = [place for place in number if place and number[place] > number[""]]
    if known:
        return known[0]
    return inner[0] if len(inner) == 1 and not number.keys() - {"", *inner} else ""
