"""Reads torchvision's models off its sources: names, kinds, published numbers of parameters, sizes of inputs."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hookcli.sources.catalog.base import ModelEntry, assigned, literal
from hookcli.system.files import content

# For models without a size: any video model accepts 16 frames, and detectors resize their input.
_FRAMES = 16
_DETECTION_SIZE = 320


def scan(folder: Path) -> Iterator[ModelEntry]:
    """Every model that a file below torchvision's folder of models registers."""
    for source in (Path(root, name) for root, _, names in os.walk(folder) for name in names if name.endswith(".py")):
        text = content(source).decode("utf-8")
        if "@register_model(" in text:
            parts = source.relative_to(folder).parts
            yield from _models(ast.parse(text), parts[0] if len(parts) > 1 else "classification")


def _models(module: ast.Module, kind: str) -> Iterator[ModelEntry]:
    constants = assigned(module)
    weights = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and (name := _registered_name(node)):
            every = (*node.args.args, *node.args.kwonlyargs)
            annotations = [a.annotation for a in every if a.arg == "weights" and a.annotation]  # another word
            named = [weights.get(getattr(n, "id", "")) for a in annotations for n in ast.walk(a)]
            enum = next(filter(None, named), None)  # such as ResNet50_Weights
            described = [
                _describe(entry.value, constants)  # `Weights(...)`
                for entry in (enum.body if enum else ())
                if isinstance(entry, ast.Assign) and isinstance(entry.value, ast.Call)
            ]
            yield _model_entry(name, kind, described, node)


def _registered_name(node: ast.FunctionDef) -> str | None:
    """The name that `@register_model()` or `@register_model(name=...)` gives the builder."""
    for call in node.decorator_list:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "register_model":
            arguments = [*call.args, *(k.value for k in call.keywords if k.arg == "name")]
            return str(ast.literal_eval(arguments[0])) if arguments else node.name
    return None


def _describe(weights: ast.Call, constants: dict[str, ast.expr]) -> dict[str, object]:
    """The sizes in a `Weights(...)` call: the keywords of its transforms, and its meta."""
    arguments = {k.arg: k.value for k in weights.keywords}
    transforms = arguments.get("transforms")
    keywords = transforms.keywords if isinstance(transforms, ast.Call) else []
    return {k.arg: literal(k.value) for k in keywords if k.arg} | _literals(arguments.get("meta"), constants)


def _literals(node: ast.expr | None, constants: dict[str, ast.expr]) -> dict[str, object]:
    """The literal items of a dictionary's display; none for another expression."""
    items: dict[str, object] = {}
    for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
        if key is None and isinstance(value, ast.Name):  # **_COMMON_META
            items |= _literals(constants.get(value.id), constants)
        elif isinstance(key, ast.Constant):
            items[str(key.value)] = literal(value)
    return items


def _model_entry(name: str, kind: str, weights: list[dict[str, Any]], builder: ast.FunctionDef) -> ModelEntry:
    # A model is built by default for the smallest of its published sizes.
    published = min(weights, key=_side, default={})
    side = _side(published)
    if kind == "detection":
        size = _DETECTION_SIZE
        for part in ast.walk(builder):  # some are built for one size, such as SSD's `(300, 300)`
            pair = literal(part) if isinstance(part, ast.Tuple) else None
            if pair and len(pair) == 2 and pair[0] == pair[1] and isinstance(pair[0], int) and pair[0] >= 64:
                size = pair[0]
                break
        inputs: tuple[tuple[int, ...], ...] = ((3, size, size),)
    elif kind == "optical_flow":
        least = published.get("min_size", (128, 128))
        inputs = ((1, 3, *least), (1, 3, *least))
    elif kind == "video":
        inputs = ((1, 3, max(_FRAMES, published.get("min_temporal_size") or 0), side, side),)
    else:
        inputs = ((1, 3, side, side),)
    return ModelEntry(name, kind, published.get("num_params"), inputs)


def _side(weights: dict[str, Any]) -> int:
    """The image side that the weights' transforms produce: their crop size, else their resize size."""
    size = weights.get("crop_size") or weights.get("resize_size") or 224
    return int(size[0] if isinstance(size, tuple) else size)
