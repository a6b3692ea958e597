"""The model that a command line names, and the parts of models and files that `--match` and `--type` select."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hookcli.commands.options import Options
from hookcli.commands.output import remark
from hookcli.errors import UsageError
from hookcli.table.names import around, checked_filter, name_filter

if TYPE_CHECKING:
    from torch import nn

    from hookcli.commands.progress import Progress
    from hookcli.hooks.parts import Select
    from hookcli.sources.base import Recipe
    from hookcli.table.meta import Meta
    from hookcli.tensors.files.stored import StoredTensor


def find_recipe(spec: str, options: Options) -> Recipe:
    """The recipe for a spec with what --arg, --weights and --task say."""
    from hookcli.sources import finding
    from hookcli.sources.module_code import trains_on_import

    if trains_on_import(spec):
        file = spec.rpartition(":")[0]
        remark(f'{file} trains as it is imported: put the training under if __name__ == "__main__":', options)
    return finding.find_recipe(spec, parse_args(options.arg), options.weights, options.task)


def built_model(
    spec: str, options: Options, progress: Progress, *, meta: bool, original: bool = False
) -> tuple[str, nn.Module, Meta]:
    """The name of a model, the model, without its input, and its description; on the meta device without values."""
    import torch

    from hookcli.engine.prepare import build
    from hookcli.engine.run_info import torchvision_version
    from hookcli.engine.setting import META, Setting

    recipe = find_recipe(spec, options)
    progress.stage(f"building {recipe.name}")
    setting = Setting(seed=options.seed, weights=options.weights, strict=options.strict)
    model, problem, weights = build(recipe, replace(setting, device=META) if meta else setting, original=original)
    remark(problem, options)
    info: Meta = {"torch": torch.__version__, "seed": options.seed, **recipe.meta, **weights, **torchvision_version()}
    return recipe.name, model, info


def parse_args(texts: Sequence[str]) -> dict[str, object]:
    """Parse `key=value` pairs: values as Python literals (or true, false, null) where possible, else as text."""
    from ast import literal_eval

    named = {"true": True, "false": False, "null": None, "none": None}
    parsed: dict[str, object] = {}
    for item in texts:
        key, separator, text = item.partition("=")
        if not separator or not key.isidentifier():
            raise UsageError(f"--arg {item!r}: give key=value, as in --arg num_classes=10", option="arg")
        try:
            parsed[key] = named[text.lower()] if text.lower() in named else literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            parsed[key] = text
    return parsed


@dataclass
class Selection:
    """The selection of a run. With --ops, names of operators are known only afterwards: see `require_some`."""

    options: Options
    _types: dict[str, str] = field(default_factory=dict)
    _some: bool = True

    def of(self, model: nn.Module, *, parameters: bool = False) -> Select | None:
        """The selection among modules, or `parameters`; None for all of them. Raises UsageError if it is empty."""
        select = self.among(model)
        if select is None or self.options.ops:
            return select
        from hookcli.hooks.parts import selects_parameter

        if parameters:
            selected = any(selects_parameter(select, model, fqn) for fqn, _ in model.named_parameters())
        else:
            selected = any(select(fqn, module) for fqn, module in model.named_modules())
        if not selected:
            raise UsageError(f"no {'parameter' if parameters else 'module'} matches {self._asked()}")
        return select

    def among(self, model: nn.Module) -> Select | None:
        """The selection, which may select nothing. Raises UsageError for a name or type that no part has."""
        match, wanted = self.options.match, self.options.type
        if match is None and wanted is None:
            return None
        from hookcli.hooks.operators.functions import type_of
        from hookcli.tensors import tree

        types = {fqn: tree.type_text(module) for fqn, module in model.named_modules(remove_duplicate=False)}
        named = (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
        types |= {fqn: "" for pairs in named for fqn, _ in pairs}
        self._types, self._some = types, False
        matches = name_filter(match, types) if self.options.ops else checked_filter(match, wanted, types)

        def select(fqn: str, part: object) -> bool:
            kind = type_of(part)
            named = types.setdefault(fqn, kind)  # an operator is new here; a parameter comes with its module
            chosen = matches(fqn, named) and wanted in (None, kind)
            self._some = self._some or chosen
            return chosen

        return select

    def require_some(self) -> None:
        """Raises UsageError if nothing that ran was selected."""
        if not self._some:
            checked_filter(self.options.match, self.options.type, self._types, kind="module, parameter or operator")
            raise UsageError(f"no module or operator matches {self._asked()}")

    def _asked(self) -> str:
        match = self.options.match and f"--match {self.options.match!r}"
        return " and ".join(filter(None, (match, self.options.type and f"--type {self.options.type}")))


def matching(tensors: Sequence[StoredTensor], pattern: str | None) -> list[StoredTensor]:
    """The tensors that --match names, themselves or by a module around them. Raises UsageError if there are none."""
    if pattern is None:
        return [*tensors]
    names = {owner: "" for tensor in tensors for owner in (tensor.name, *around(tensor.name)) if owner}
    matches = checked_filter(pattern, None, names)
    return [t for t in tensors if any(matches(name, "") for name in (t.name, *around(t.name)) if name)]
