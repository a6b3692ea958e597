"""The names of modules and parameters that --match selects."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from hookcli.record.observe.models.model import ObservedModel
from hookcli.record.observe.wrappers import PlainNames
from hookcli.report.names import is_also_a_part, name_filter, no_match
from hookcli.tensors import tree


class Selection:
    """The test of names that --match asks for. Does not keep the model alive."""

    def __init__(self, pattern: str | None, module: nn.Module, name: PlainNames, model: ObservedModel) -> None:
        self._name = name
        self._named: Callable[[str, str], bool] | None = None
        self._types: dict[str, str] = {}
        if pattern is not None:
            self._match(pattern, module, model)

    def _match(self, pattern: str, module: nn.Module, model: ObservedModel) -> None:
        """Take the names that the pattern is about, and note if it selects nothing, or less than one may expect."""
        modules = module.named_modules(remove_duplicate=False)
        self._types = {self._name(fqn): tree.type_text(one) for fqn, one in modules}
        names = self._types | dict.fromkeys((self._name(fqn) for fqn, _ in module.named_parameters()), "")
        self._named = name_filter(pattern, names)
        if not any(self._named(*named) for named in names.items()):
            model.counts.note(f"--match: {no_match(pattern, names)}")
        elif is_also_a_part(pattern, names):
            said = f"--match {pattern}: only what has exactly this name"
            model.counts.note(f"{said}; '*{pattern}*' matches every name that contains it")

    def __call__(self, fqn: str) -> bool:
        if self._named is None:
            return True
        name = self._name(fqn)
        return self._named(name, self._types.get(name, ""))


def is_watched(selection: Selection, compiled: Mapping[str, str], fqn: str, module: nn.Module) -> bool:
    """True for a selected module that is not compiled, as a session asks."""
    return fqn not in compiled and selection(fqn)
