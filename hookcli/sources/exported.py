"""Exported programs: `FILE.pt2`, which torch.export.save wrote, with the names and classes of the original modules.

Loading one can run code, as importing a model's file does: PyTorch evaluates expressions and unpickles inputs in it.
"""

from __future__ import annotations

import json
import logging
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export.passes import move_to_device_pass
from torch.export.unflatten import InterpreterModule, UnflattenedModule

from hookcli.errors import UsageError, UserCode, in_brief, shortened
from hookcli.sources.base import Arguments, Recipe, Request
from hookcli.system.files import is_file, member, opened, regular
from hookcli.system.streams import logged_from
from hookcli.tensors.weak import WeakIds


class ExportedSource:
    """A program in a file, with the example input that it was exported with."""

    def recipe(self, request: Request) -> Recipe:
        """Return the recipe that loads the program from the file."""
        if request.args:
            raise UsageError(f"--arg: {request.spec} is an exported program, which takes none", option="arg")
        version = _version(request.spec)
        examples: WeakIds[nn.Module, Arguments] = WeakIds()
        build = partial(_build, request.spec, version, examples)
        return Recipe(Path(request.spec).name, build, example=examples.get, meta={"exported_by": f"torch {version}"})


def _version(file: str) -> str:
    """The version of PyTorch that exported a program. Raises UsageError if the file holds none."""
    if not is_file(file):
        raise UsageError(f"no file {shortened(file)!r}")
    try:
        with opened(file) as found, zipfile.ZipFile(found) as archive:
            names = archive.namelist()
            models = [name for name in names if "/models/" in name and name.endswith(".json")]
            found = json.loads(member(archive, models[0])) if models else {}
    except Exception as error:  # zipfile fails in many ways: encrypted, of an unknown compression, cut
        raise UsageError(f"{file}: not an exported program, or damaged ({in_brief(error)})") from error
    if not isinstance(found, dict) or "graph_module" not in found:
        compiled = any("aotinductor" in name for name in names)
        said = "an AOTInductor package, which holds compiled code" if compiled else "torch.export.save did not write it"
        raise UsageError(f"{file}: not an exported program: {said}")
    return str(found.get("torch_version") or "before 2.8")


def _build(file: str, version: str, examples: WeakIds[nn.Module, Arguments]) -> nn.Module:
    """The program as modules, on the meta device where that is the default one."""
    here = torch.get_default_device()
    again = f"torch {torch.__version__} can't load what torch {version} exported; export it again with this version"
    logged = logged_from(logging.CRITICAL, "torch.export")  # not the tracebacks of a file that it can't load
    with torch.device("cpu"), logged, UserCode(lambda e: UsageError(f"{file}: {again} ({in_brief(e)})")):
        program = torch.export.load(regular(file))
        if here.type == "meta":
            program = move_to_device_pass(program, "meta")
        model = torch.export.unflatten(program)
    _name_classes(model)
    names = program.module_call_graph[0].signature
    args, keywords = program.example_inputs or ((), {})
    known = (names and names.forward_arg_names) or ()
    positional = known[: len(args)] if len(known) >= len(args) else [f"args_{number}" for number in range(len(args))]
    model.positional = tuple(positional)  # type: ignore[assignment]
    examples[model] = dict(zip(positional, args, strict=True)) | keywords if keywords else tuple(args)
    return model


class _Program(UnflattenedModule):
    """A program that also takes its positional arguments by name, since hookcli passes all in one of the two ways."""

    positional: tuple[str, ...] = ()

    def forward(self, *args: Any, **keywords: Any) -> Any:
        """Run the program."""
        named = [keywords.pop(name) for name in self.positional if name in keywords]
        return super().forward(*args, *named, **keywords)  # type: ignore[no-untyped-call]


def _name_classes(model: nn.Module) -> None:
    """Give each module a class with the name of the one that was exported, for tables and `--type`.

    The class also holds the module's compiled graph, which would look like a part that someone forgot to register.
    """
    for module in model.modules():
        if isinstance(module, (InterpreterModule, UnflattenedModule)):
            base = _Program if isinstance(module, UnflattenedModule) else type(module)
            name = (module.type_name() or base.__name__).rpartition(".")[2]
            module.__class__ = type(name, (base,), {"graph_module": vars(module).pop("graph_module")})
