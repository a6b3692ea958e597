"""Finds the part of a checkpoint that fits a model: by names and shapes, whatever it is called and wrapped in."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn.parameter import is_lazy

from hookcli.errors import UsageError
from hookcli.hooks.torch_private.dynamo import WRAPPED
from hookcli.hooks.torch_private.modules import STATE_VERSIONS
from hookcli.table.formatting import counted, listed
from hookcli.tensors.files.checkpoints import STATE_DICTS, Entry, entries
from hookcli.tensors.files.plain_objects import StandIn

_WRAPPERS = WRAPPED | {"module"}
"""What data-parallel, compiled, sharded and checkpointed modules add to the names of what they wrap."""
_COPIES = ("ema", "swa", "average", "shadow", "teacher", "momentum", "grad")
"""Words in the keys of what has the names and shapes of the trained model, and other values."""
ANY_SIZE = "of any size"
"""The size of a lazy parameter, in words."""
_NAMED = 3


def size_text(value: object) -> str:
    """The shape of a tensor in words; the type of anything else."""
    if isinstance(value, StandIn):
        return value.in_words
    if not isinstance(value, Tensor):
        return type(value).__name__
    return ANY_SIZE if is_lazy(value) else "x".join(map(str, value.shape)) or "scalar"


@dataclass(frozen=True, slots=True)
class _Found:
    """The entries of a checkpoint whose names begin with `prefix` and go on as the model's names."""

    prefix: str
    place: str
    entries: dict[str, Entry] = field(default_factory=dict)

    @property
    def in_names(self) -> str:
        """What of the prefix is in the names of the state dict, rather than in the keys around it."""
        around = f"{self.place}." if self.place else ""
        return self.prefix.removeprefix(around) if self.prefix.startswith(around) else ""

    @property
    def is_copy(self) -> bool:
        """True if the prefix marks an average of the weights, or something else that is laid out like them."""
        return any(word in self.prefix.lower() for word in _COPIES)


@dataclass(frozen=True, slots=True)
class Part:
    """The state dict in a checkpoint, under the model's names, and remarks on where it is and what was left out."""

    state: dict[str, object]
    remarks: Sequence[str] = ()


class Fitting:
    """The search for a model's state dict in a checkpoint."""

    def __init__(self, checkpoint: Mapping[Any, object], model_state: Mapping[str, object]) -> None:
        self._model = {
            ".".join(part for part in name.split(".") if part not in _WRAPPERS): name for name in model_state
        }
        if len(self._model) < len(model_state):  # without the wrappers, two names would be one
            self._model = {name: name for name in model_state}
        self._sizes = {name: size_text(model_state[real]) for name, real in self._model.items()}
        self._deepest = max((name.count(".") for name in self._model), default=0) + 1
        self._entries = [entry for entry in entries(checkpoint) if not entry.of_optimizer]

    def part(self) -> Part:
        """The part that fits best, by the number of tensors. Raises UsageError where two of one dict fit as well."""
        candidates = [one for one in self._found() if self._may_be(one)]
        if not candidates:
            place = self._largest()
            return self._part(_Found(f"{place}." if place else "", place), [])
        scores = []
        for one in candidates:
            fits = (self._sizes[name] in (size_text(entry.value), ANY_SIZE) for name, entry in one.entries.items())
            scores.append((sum(fits), len(one.entries)))
        best = [one for one, score in zip(candidates, scores, strict=True) if score == max(scores)]
        best.sort(key=lambda one: (one.is_copy, one.prefix.count(".")))
        chosen = best[0]
        beside = [one for one in best[1:] if one.place == chosen.place]
        if beside:
            names = listed([repr(one.in_names) for one in (chosen, *beside)], _NAMED)
            raise UsageError(f"holds several parts that fit the model ({names}); save the state dict of one of them")
        return self._part(chosen, best[1:])

    def _found(self) -> list[_Found]:
        by_prefix: dict[str, _Found] = {}
        for entry in self._entries:
            # Every way to divide a name into a prefix and a name of at most so many parts, which leaves out wrappers.
            rest, name, number = entry.name, "", 0
            while rest and number < self._deepest:
                rest, _, part = rest.rpartition(".")
                if part in _WRAPPERS:
                    continue
                name, number = f"{part}.{name}" if name else part, number + 1
                if name in self._model:
                    prefix = f"{rest}." if rest else ""
                    one = by_prefix.setdefault(prefix, _Found(prefix, entry.place))
                    one.entries.setdefault(name, entry)
        return [*by_prefix.values()]

    def _may_be(self, candidate: _Found) -> bool:
        """True if a prefix within names covers most of the model, or all names: others are there by chance."""
        if not candidate.in_names or 2 * len(candidate.entries) > len(self._model):
            return True
        held = (entry for entry in self._entries if entry.place == candidate.place and isinstance(entry.value, Tensor))
        return all(entry.key.startswith(candidate.in_names) for entry in held)

    def _largest(self) -> str:
        """The place of the dict of the most tensors, of those under well-known keys if there are any."""
        number = Counter(entry.place for entry in self._entries if isinstance(entry.value, Tensor))
        known = {place: number[place] for place in number if place.rpartition(".")[2] in STATE_DICTS}
        return max(known or number, key=number.__getitem__, default="")

    def _part(self, chosen_part: _Found, others: Sequence[_Found]) -> Part:
        """The tensors under the prefix, under the model's names as far as these are known."""
        places = {entry.place for entry in chosen_part.entries.values()} or {chosen_part.place}
        chosen = {id(entry): name for name, entry in chosen_part.entries.items()}
        state: OrderedDict[str, object] = OrderedDict()
        outside, dropped = [], set[str]()
        for entry in (entry for entry in self._entries if entry.place in places):
            rest = entry.name.removeprefix(chosen_part.prefix)
            if id(entry) in chosen:
                state[self._model[chosen[id(entry)]]] = entry.value
                dropped |= _WRAPPERS & {*rest.split(".")} if rest not in self._model.values() else set()
            elif isinstance(entry.value, Tensor) and entry.name.startswith(chosen_part.prefix):
                state.setdefault(rest, entry.value)
            elif isinstance(entry.value, Tensor):
                outside.append(entry.key)
        self._keep_versions(state, chosen_part)
        return Part(
            state, [*_remarks(chosen_part, dropped, outside), *(f"{_named(one)} fits, too" for one in others[:1])]
        )

    def _keep_versions(self, state: OrderedDict[str, object], part: _Found) -> None:
        """Give the state dict the versions of modules that it was saved with, which `load_state_dict` reads."""
        owners = (entry.owner for entry in part.entries.values() if entry.place == part.place)
        versions = getattr(next(owners, None), STATE_VERSIONS, None)
        if not isinstance(versions, dict):
            return
        within = {f"{name}." if name else "": version for name, version in versions.items()}
        own = {name: version for name, version in within.items() if name.startswith(part.in_names)}
        vars(state)[STATE_VERSIONS] = {name.removeprefix(part.in_names)[:-1]: version for name, version in own.items()}


def _named(part: _Found) -> str:
    return repr(part.prefix.removesuffix("."))


def _remarks(part: _Found, dropped: set[str], outside: Sequence[str]) -> list[str]:
    """Say which keys and prefixes were left out of the names, and which tensors."""
    around = part.prefix.removesuffix(part.in_names).removesuffix(".")
    remarks = [f"took the state dict under {around!r}"] if around else []
    if part.in_names:
        remarks += [f"{'names without' if around else 'took the tensors under'} {part.in_names!r}"]
    if dropped:
        remarks.append(f"names without {listed([repr(f'{name}.') for name in sorted(dropped)])}")
    if outside:
        left_out = f"left out {counted(len(outside), 'tensor')} outside it ({listed(outside, _NAMED)})"
        remarks.append(left_out)
    return remarks
