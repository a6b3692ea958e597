"""Exported programs: `FILE.pt2`, which torch.export.save wrote, with the names and classes of the original modules.

PyTorch gets a plain copy of the file, which can't run code, unless `--arg trust=true` is given.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO
from unittest.mock import patch

import torch
from torch import nn
from torch.export.passes import move_to_device_pass
from torch.export.unflatten import InterpreterModule, UnflattenedModule

from hookcli.errors import UsageError, UserCode, in_brief, shortened
from hookcli.sources.archive import root_of
from hookcli.sources.base import Arguments, Recipe, Request
from hookcli.sources.plain_program import PROGRAM, NotPlainError, write_plain
from hookcli.system.files import is_file, member, opened, regular
from hookcli.system.streams import logged_from
from hookcli.tensors.files.file_kinds import kind_of
from hookcli.tensors.weak import WeakIds


class ExportedSource:
    """A program in a file, with the example input that it was exported with."""

    def recipe(self, request: Request) -> Recipe:
        if request.args.keys() - {"trust"}:
            raise UsageError(f"--arg: {request.spec} is an exported program, which takes only trust=true", option="arg")
        version = _version(request.spec)
        examples: WeakIds[nn.Module, Arguments] = WeakIds()
        build = partial(_build, request.spec, version, request.args.get("trust") is True, examples)
        return Recipe(Path(request.spec).name, build, example=examples.get, meta={"exported_by": f"torch {version}"})


def _version(file: str) -> str:
    """The version of PyTorch that exported a program. Raises UsageError if the file holds none."""
    if not is_file(file):
        raise UsageError(f"no file {shortened(file)!r}")
    try:
        with opened(file) as stream, zipfile.ZipFile(stream) as archive:
            names = archive.namelist()
            model = root_of(archive) + PROGRAM
            program = json.loads(member(archive, model)) if model in names else {}
    except Exception as error:  # zipfile fails in many ways: encrypted, of an unknown compression, cut
        raise UsageError(f"{file}: not an exported program, or damaged ({in_brief(error)})") from error
    if not isinstance(program, dict) or "graph_module" not in program:
        compiled = any("aotinductor" in name for name in names)
        what = "an AOTInductor package, which holds compiled code" if compiled else "torch.export.save did not write it"
        kind = kind_of(file)
        raise UsageError(f"{file} is {kind}" if kind else f"{file}: not an exported program: {what}")
    return str(program.get("torch_version") or "before 2.8")


def _build(file: str, version: str, trusted: bool, examples: WeakIds[nn.Module, Arguments]) -> nn.Module:
    """The program as modules, on the meta device where that is the default one."""
    here = torch.get_default_device()
    logged = logged_from(logging.CRITICAL, "torch")  # not the tracebacks of a file that it can't load

    def unloadable(error: BaseException) -> UsageError:
        if isinstance(error, (NotPlainError, pickle.UnpicklingError)):
            pickled = "its pickled example input or weights hold more than tensors and plain values"
            why = error if isinstance(error, NotPlainError) else pickled
            trust = "  if you trust its origin, give --arg trust=true"
            return UsageError(f"{file}: loading it could run code: {why}\n{trust}")
        again = f"torch {torch.__version__} can't load what torch {version} exported; export it again with this version"
        return UsageError(f"{file}: {again} ({in_brief(error)})")

    with torch.device("cpu"), logged, UserCode(unloadable):
        with _source(file, trusted) as source:
            program = torch.export.load(source)
        if here.type == "meta":
            program = move_to_device_pass(program, "meta")
        model = torch.export.unflatten(program)
    # Named as in the program that was exported, for tables and `--type`. The class also holds the compiled graph,
    # which would look like a part that someone forgot to register.
    for module in model.modules():
        if isinstance(module, (InterpreterModule, UnflattenedModule)):
            base = _Program if isinstance(module, UnflattenedModule) else type(module)
            name = (module.type_name() or base.__name__).rpartition(".")[2]
            graph = {"graph_module": vars(module).pop("graph_module", None)}  # a ModuleDict has none
            module.__class__ = type(name, (base,), graph)
    signature = program.module_call_graph[0].signature
    args, keywords = program.example_inputs or ((), {})
    names = (signature and signature.forward_arg_names) or ()
    positional = names[: len(args)] if len(names) >= len(args) else [f"args_{number}" for number in range(len(args))]
    model.positional = tuple(positional)  # type: ignore[assignment]
    examples[model] = dict(zip(positional, args, strict=True)) | keywords if keywords else tuple(args)
    return model


@contextmanager
def _source(file: str, trusted: bool) -> Iterator[str | IO[bytes]]:
    """Yield what torch.export.load reads: the file itself, or a plain copy, of which it unpickles tensors alone."""
    if trusted:
        yield str(regular(file))
        return
    weights_only = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "0"}
    with TemporaryFile(prefix="hookcli-") as copy, patch.dict(os.environ, weights_only):
        with opened(file) as stream, zipfile.ZipFile(stream) as archive:
            write_plain(archive, copy)
        copy.seek(0)
        yield copy


class _Program(UnflattenedModule):
    """A program that also takes its positional arguments by name, since hookcli passes all in one of the two ways."""

    positional: tuple[str, ...] = ()

    def forward(self, *args: object, **keywords: object) -> object:
        named = [keywords.pop(name) for name in self.positional if name in keywords]
        return super().forward(*args, *named, **keywords)  # type: ignore[no-untyped-call]
