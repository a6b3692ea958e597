"""Reads timm's models off its sources: names, families, weights and sizes of inputs.

timm describes weights by calls of small functions that return dictionaries; of Python's expressions just those are
evaluated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hookcli.sources.catalog.base import ModelEntry, assigned, literal
from hookcli.system.files import content

_SIZE = (3, 224, 224)  # the default of timm's PretrainedCfg
_CLASS = re.compile(r"^class .*?(?=^[@\w])", re.MULTILINE | re.DOTALL)
_SOURCES = ("url", "file", "hf_hub_id")


def scan(folder: Path) -> Iterator[ModelEntry]:
    """Every model that a file in timm's folder of models registers."""
    for file in folder.glob("*.py"):
        text = content(file).decode("utf-8")
        if "@register_model" in text:
            try:  # without classes, which hold nothing that is read here and take half the time
                parsed = ast.parse(_CLASS.sub("", text))
            except SyntaxError:  # a line within one that looks like its end
                parsed = ast.parse(text)
            yield from _Module(parsed).models(file.stem)


class _Module:
    """The functions and configurations of one of timm's files."""

    def __init__(self, tree: ast.Module) -> None:
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._configs: dict[str, dict[str, Any]] = {}
        self._names = assigned(tree)
        for node in tree.body:
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == "default_cfgs" for target in node.targets
            ):
                # `generate_default_cfgs({...})`, or `{...}`
                table = node.value.args[0] if isinstance(node.value, ast.Call) and node.value.args else node.value
                for key, config in self._dict(table, {}).items():
                    architecture, _, tag = str(key).partition(".")
                    self._configs.setdefault(architecture, {})[tag] = config if isinstance(config, dict) else {}

    def models(self, family: str) -> Iterator[ModelEntry]:
        for name, node in self._functions.items():
            if any(isinstance(one, ast.Name) and one.id == "register_model" for one in node.decorator_list):
                configs = self._configs.get(name, {})
                tags = _by_priority(configs)
                size = configs[tags[0]].get("input_size", _SIZE) if tags else None
                published = tuple(tag for tag in tags if tag and _has_weights(configs[tag]))
                yield ModelEntry(name, family, inputs=((1, *size),) if size else (), weights=published)

    def _value(self, node: ast.expr, bound: Mapping[str, object]) -> object:
        """The value of an expression as far as it is needed; None for what is not understood."""
        if isinstance(node, ast.Name):
            return bound.get(node.id, literal(self._names[node.id]) if node.id in self._names else None)
        if isinstance(node, (ast.Dict, ast.Call)):
            return self._dict(node, bound)
        return literal(node)

    def _dict(self, node: ast.expr, bound: Mapping[str, object]) -> dict[str, object]:
        """The dictionary that a display, `dict(...)` or one of the file's functions makes."""
        if isinstance(node, ast.Dict):
            keys = (None if key is None else str(literal(key)) for key in node.keys)  # None for `**`
            return self._merged(zip(keys, node.values, strict=True), bound)
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            return {}
        keywords = self._merged(((k.arg, k.value) for k in node.keywords), bound)
        function = self._functions.get(node.func.id)
        if function is None:
            first = self._value(node.args[0], bound) if node.args else {}
            return (first if isinstance(first, dict) else {}) | keywords if node.func.id == "dict" else {}
        positional = zip(function.args.args, node.args, strict=False)
        return self._called(function, keywords | {arg.arg: self._value(v, bound) for arg, v in positional})

    def _merged(self, items: Iterable[tuple[str | None, ast.expr]], bound: Mapping[str, object]) -> dict[str, object]:
        """The values by key; where the key is None, a dictionary is unpacked."""
        merged: dict[str, object] = {}
        for key, node in items:
            value = self._value(node, bound)
            merged |= {key: value} if key is not None else value if isinstance(value, dict) else {}
        return merged

    def _called(self, function: ast.FunctionDef, arguments: dict[str, object]) -> dict[str, object]:
        """The dictionary that a function returns for these arguments."""
        args = function.args
        names = [arg.arg for arg in args.args]
        defaults = dict(zip(reversed(names), map(literal, reversed(args.defaults)), strict=False))
        bound = defaults | {name: value for name, value in arguments.items() if name in names}
        if args.kwarg:
            bound[args.kwarg.arg] = {name: value for name, value in arguments.items() if name not in names}
        returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]
        return self._dict(returned[-1], bound) if returned else {}


def _has_weights(config: Mapping[str, object]) -> bool:
    return any(map(config.get, _SOURCES))


def _by_priority(configs: dict[str, Any]) -> list[str]:
    """The tags, the default one first, as timm's generate_default_cfgs orders them; a `*` is taken off their ends."""
    tags: list[str] = []
    marked = has_weights = False
    for tag, config in list(configs.items()):
        weights = _has_weights(config)
        first = bool(weights and not tag) or (tag.endswith("*") and not marked)
        name = tag.strip("*")
        configs[name] = config
        tags.insert(0 if first or (weights and not has_weights) else len(tags), name)
        marked, has_weights = marked or first, has_weights or weights
    return tags
