"""Matches a batch with the parameters of a model's forward: which parts are input, and which is the target."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hookcli.errors import UsageError, class_name, unknown
from hookcli.sources.base import Arguments
from hookcli.sources.data.base import AllInput
from hookcli.sources.losses import TARGET_NAMES


@dataclass(frozen=True, slots=True)
class Forward:
    """The parameters of a model's forward: the `names` of those that may be given by position, of which `needed` have
    no default; `more` of them with `*args`; and the `keywords` that it takes, None for any.
    """

    names: Sequence[str]
    needed: int
    more: bool
    keywords: frozenset[str] | None

    @classmethod
    def of(cls, model: nn.Module) -> Forward:
        """The parameters of this model's forward; any, where Python can't tell (TorchScript)."""
        try:
            parameters = list(inspect.signature(model.forward).parameters.values())
        except (TypeError, ValueError):
            return cls((), 0, True, None)
        placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        named = frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        return cls(
            [p.name for p in placed],
            sum(p.default is p.empty for p in placed),
            any(p.kind is p.VAR_POSITIONAL for p in parameters),
            None if any(p.kind is p.VAR_KEYWORD for p in parameters) else named,
        )

    def split(self, given: Any) -> tuple[Arguments, Any]:
        """The arguments in a batch and its target, None without one. Raises UsageError for what the model can't take.

        Keywords are matched by name; one more that is called target or label is the target. The last item of a tuple or
        list is the target where forward needs fewer arguments than there are items.
        """
        if isinstance(given, AllInput):
            keywords = given.arguments
            known = keywords if isinstance(keywords, tuple) else self._named(keywords, (), given.spare, given.typed)[0]
            return known, given.target
        if isinstance(given, Mapping):
            return self._named(given)
        if not isinstance(given, (tuple, list)):
            if isinstance(given, Tensor) or hasattr(given, "__array__"):
                return (given,), None
            raise UsageError(f"is {class_name(given)}; give a tensor, a tuple of inputs and a target, or a dict")
        if not given:
            raise UsageError("is empty")
        items = tuple(given)
        together = len(items) == 2 and self._holds_all(items[0])
        if len(items) == 1 or (len(items) <= self.needed and not together) or (self.more and not self.names):
            return self._alone(items), None
        *inputs, target = items
        arguments = self._alone(tuple(inputs))
        name = next((name for name in self.names if name in TARGET_NAMES), None)
        if name is None:
            return arguments, target
        if isinstance(arguments, dict):
            return {**arguments, name: target}, None
        if self.names[len(arguments) : len(arguments) + 1] == [name]:
            return (*arguments, target), None
        return {**dict(zip(self.names, arguments, strict=False)), name: target}, None

    def _alone(self, items: tuple[Any, ...]) -> Arguments:
        """The arguments among the items of a batch: one item may hold several of them, or keywords."""
        if len(items) == 1 and isinstance(items[0], Mapping):
            return self._named(items[0])[0]
        if len(items) == 1 and self._holds_all(items[0]):
            return tuple(items[0])
        names = ", ".join(self.names) or "no input"
        if len(items) < self.needed:
            raise UsageError(f"has {len(items)} input{'s' * (len(items) > 1)}, but forward takes {names}")
        if len(items) > len(self.names) and not self.more:
            raise UsageError(f"has {len(items)} inputs and a target, but forward takes {names}")
        return items

    def _holds_all(self, item: Any) -> bool:
        """True if one item of a batch holds all the arguments that forward needs, where it needs several."""
        return isinstance(item, (tuple, list)) and len(item) == self.needed > 1

    def _named(
        self, given: Mapping[str, Any], targets: Sequence[str] = TARGET_NAMES, spare: bool = False, typed: bool = False
    ) -> tuple[Arguments, Any]:
        """The keywords that forward takes, and the one of these targets that is left."""
        taken = {key: value for key, value in given.items() if self.keywords is None or key in self.keywords}
        rest = {key: value for key, value in given.items() if key not in taken}
        target = next((rest.pop(key) for key in targets if key in rest), None)
        alone = not typed and not taken and (len(rest) == 1 or (rest and spare))
        if alone and self.names and self.needed <= 1:
            return (next(iter(rest.values())),), target  # whatever it is called
        if rest and not spare:
            raise UsageError(unknown("keyword of forward", next(iter(rest)), self.names or sorted(self.keywords or ())))
        missing = [name for name in self.names[: self.needed] if name not in taken]
        if missing:
            raise UsageError(f"lacks {missing[0]!r}, which forward needs; it has {', '.join(map(str, given))}")
        return taken, target
