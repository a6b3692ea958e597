"""Which names --match selects."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from hookcli.hooks.operators.functions import type_of
from hookcli.record.observe.naming import PlainNames
from hookcli.table.names import is_also_a_part, name_filter, no_match
from hookcli.tensors import tree


class MatchFilter:
    """Tests names for --match; `operators`: also of operators, which are known once they run. Keeps no model alive."""

    def __init__(
        self, pattern: str | None, module: nn.Module, name: PlainNames, note: Callable[[str], None], operators: bool
    ) -> None:
        self._name = name
        self._pattern = pattern
        self._note = note
        self._may_come = operators
        self._matches: Callable[[str, str], bool] | None = None
        self._types: dict[str, str] = {}
        if pattern is None:
            return
        modules = module.named_modules(remove_duplicate=False)
        self._types = {self._name(fqn): tree.type_text(one) for fqn, one in modules}
        names = self._types | dict.fromkeys((self._name(fqn) for fqn, _ in module.named_parameters()), "")
        self._matches = name_filter(pattern, names)
        if any(self._matches(*named) for named in names.items()):
            self._may_come = False
            if is_also_a_part(pattern, names):
                exactly = f"--match {pattern}: only what has exactly this name"
                self._note(f"{exactly}; '*{pattern}*' matches every name that contains it")
        elif not self._may_come:
            self._note(f"--match: {no_match(pattern, names)}")

    def __call__(self, fqn: str, operator: object = None) -> bool:
        """True for a selected module or parameter, or an operator, given its function."""
        if self._matches is None:
            return True
        name = self._name(fqn)
        if operator is None:
            return self._matches(name, self._types.get(name, ""))
        matches = self._matches(name, self._types.setdefault(name, type_of(operator)))
        self._may_come = self._may_come and not matches
        return matches

    def step_over(self) -> None:
        """Note if nothing was selected, now that all operators of a step have run."""
        if self._pattern is not None and self._may_come:
            self._may_come = False
            self._note(f"--match: {no_match(self._pattern, self._types, 'module, parameter or operator')}")
