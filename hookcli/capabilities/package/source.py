"""Models from a torch.package: `package:FILE --arg trust=true`, or `hookcli package --load FILE --trust`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.package.package_importer import PackageImporter

from hookcli.errors import ModelError, UsageError, unknown
from hookcli.sources.archive import Archive, read_archive
from hookcli.sources.base import InputSpec, Recipe, Request, one_list
from hookcli.sources.inputs import parse_input
from hookcli.system.files import regular

_ARGUMENTS = ("trust", "resource")


class PackageSource:
    """The object in a torch.package; refused without trust, since loading it runs its code."""

    def recipe(self, request: Request) -> Recipe:
        for name in request.args:
            if name not in _ARGUMENTS:
                raise UsageError(unknown("argument of a package", name, _ARGUMENTS))
        archive = read_archive(request.spec)
        resource = archive.resource(request.args.get("resource"))
        if request.args.get("trust") is not True:
            modules, externs, pickles = archive.modules, archive.externs, archive.pickles
            has = f"{len(modules)} packaged modules ({_some(modules)})" if modules else "no packaged modules"
            packages = list(dict.fromkeys(name.partition(".")[0] for name in externs))
            uses = f"{len(externs)} of this machine ({_some(packages)})"
            objects = f"{len(pickles)} pickled object{'s' * (len(pickles) != 1)} ({_some(pickles)})"
            raise UsageError(
                f"{archive.path}: loading a package runs code: {objects}, {has}, {uses}\n"
                "  if you trust its origin, give --trust (with other commands: package:FILE --arg trust=true)"
            )
        recipe = Recipe(archive.path.name, partial(_load, archive, resource), meta={"package": str(archive.path)})
        try:
            noted: Any = archive.noted_input(resource) or {}
            specs = tuple(map(parse_input, noted["inputs"]))
            if not (names := noted.get("names")):
                listed = noted.get("listed")
                return replace(recipe, inputs=specs, arrange=one_list if listed else tuple, batched=not listed)
            pairs = list(zip(names, specs, strict=True))
        except (UsageError, TypeError, KeyError):  # another tool's note is ignored
            return recipe
        return replace(
            recipe, example=lambda _: {name: torch.ones(s.shape, dtype=s.dtype or torch.float32) for name, s in pairs}
        )


def noted_input(inputs: tuple[object, ...] | dict[str, object]) -> dict[str, object] | None:
    """A note of the input's shapes and dtypes, so that the package can run; None for an input that can't be noted."""
    names, listed = None, False
    values: Sequence[Any] = tuple(inputs.values()) if isinstance(inputs, dict) else inputs
    if isinstance(inputs, dict):
        names = list(inputs)
    elif len(values) == 1 and isinstance(values[0], list):
        values, listed = values[0], True
    if not values or not all(isinstance(value, Tensor) for value in values):
        return None
    shapes = [str(InputSpec(tuple(v.shape), None if v.dtype == torch.float32 else v.dtype)) for v in values]
    return {"inputs": shapes, "names": names, "listed": listed} if "scalar" not in str(shapes) else None


def _load(archive: Archive, resource: str) -> nn.Module:
    package, _, name = resource.rpartition("/")
    loaded = PackageImporter(regular(archive.path)).load_pickle(package.replace("/", "."), name, map_location="cpu")
    if not isinstance(loaded, nn.Module):
        raise UsageError(f"{archive.path}: {resource} holds a {type(loaded).__name__}, not an nn.Module")
    try:
        list(loaded.modules())
    except AttributeError as error:  # as PyTorch's own quantized layers are
        raise ModelError(f"{archive.path}: {resource} has a part that can't be pickled and loaded: {error}") from error
    return loaded


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
