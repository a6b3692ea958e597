"""Reads the model types that Transformers knows off its sources, with the class for each task."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hookcli.sources.catalog.base import ModelEntry, assigned, literal
from hookcli.system.files import content

BASE = "base"
"""The task of the model without a head."""

LANGUAGE = ("image-text-to-text", "speech-seq-2-seq", "seq-to-seq-causal-lm", "masked-lm", "causal-lm")
"""The tasks with a language-model head; of several that a type has, it is made for the first."""
_USUAL = ("image-classification", "object-detection", "ctc")  # before others of the same type
_OTHERS = (BASE, "backbone", "image", "pretraining", "text-encoding")  # without a head, or with one that is not named

_TASK = re.compile(r"MODEL_(?:FOR_(.+)_)?MAPPING_NAMES")


def scan(folder: Path) -> Iterator[ModelEntry]:
    """Every model type that one of the auto classes can build."""
    tasks: dict[str, dict[str, str]] = {}
    for name, value in assigned(ast.parse(content(folder / "modeling_auto.py"))).items():
        if match := _TASK.fullmatch(name):
            task = (match[1] or BASE).lower().replace("_", "-")
            for model_type, class_name in _pairs(value):
                tasks.setdefault(model_type, {})[task] = class_name
    for model_type, classes in tasks.items():
        yield ModelEntry(model_type, tasks=classes)


def headed_task(tasks: Mapping[str, str]) -> str:
    """The task whose class adds a head to the base class, of one type's classes by task; "" without one.

    A language-model head comes first. None is missing if the base class serves a task by itself, as CLIP's does.
    """
    ordered = [*LANGUAGE, *_USUAL, *(task for task in tasks if task not in _OTHERS)]
    if any(tasks.get(task) == tasks.get(BASE) for task in tasks if task not in _OTHERS):
        return ""
    return next((task for task in ordered if tasks.get(task, tasks.get(BASE)) != tasks.get(BASE)), "")


def _pairs(value: ast.expr) -> Iterator[tuple[str, str]]:
    """Types and class names in `OrderedDict([("bert", "BertModel"), ...])`; the first of several classes."""
    if not isinstance(value, ast.Tuple):
        for child in ast.iter_child_nodes(value):
            if isinstance(child, ast.expr):
                yield from _pairs(child)
    elif isinstance(pair := literal(value), tuple) and len(pair) == 2:
        yield str(pair[0]), str(pair[1] if isinstance(pair[1], str) else pair[1][0])
