"""Makes input tensors from `--input 10x3x224x224` and a fill."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hookcli.errors import UsageError, shortened, unknown
from hookcli.hooks.option_values import FILLS
from hookcli.sources.base import InputSpec, Recipe

_SHAPE = re.compile(r"(\d{1,30}(?:[x,]\d{1,30})*)(?::([\w.]+))?")  # Python refuses to convert thousands of digits
_AROUND_MARK = re.compile(r" *([x,:]) *")  # "8 x 3" is read, "8 3" is not
_COMMON = ("float32", "float64", "float16", "bfloat16", "complex64", "int64", "int32", "uint8", "bool")
_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "fp8": "float8_e4m3fn"}
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def parse_dtype(name: str, option: str = "dtype") -> torch.dtype:
    """The dtype of a PyTorch name, given in `option`. Raises UsageError with the closest names for an unknown one."""
    plain = name.removeprefix("torch.")
    if plain not in _DTYPES:
        meant = _SHORT.get(plain.lower()) or str(vars(torch).get(plain.lower())).removeprefix("torch.")  # torch.half
        guess = f"unknown dtype {name!r}; did you mean {meant}?"
        raise UsageError(guess if meant in _DTYPES else unknown("dtype", name, _COMMON), option=option)
    return _DTYPES[plain]


def parse_input(text: str) -> InputSpec:
    """Parse `10x3x224x224`, or with a dtype: `2x128:int64`. Raises UsageError for anything else."""
    match = _SHAPE.fullmatch(_AROUND_MARK.sub(r"\1", text.strip()))
    if not match:
        joined = re.sub(r"(?<=\d) +(?=\d)", "x", text.strip())
        if _SHAPE.fullmatch(joined):
            raise UsageError(f"--input {shortened(text)!r}: write {shortened(joined)}", option="input")
        raise UsageError(
            f"--input {shortened(text)!r}: give sizes as in 1x3x224x224, with a dtype where needed: 2x128:int64",
            option="input",
        )
    sizes = tuple(int(size) for size in re.split("[x,]", match[1]))
    return InputSpec(sizes, parse_dtype(match[2], "input") if match[2] else None)


def input_specs(
    recipe: Recipe, typed: Sequence[InputSpec], batch: int | None, natural_batch: int = 1
) -> tuple[InputSpec, ...] | None:
    """The given inputs, else the model's natural ones in a batch of `natural_batch`; None if neither is known.

    `batch` replaces the batch size of either. One given shape serves all inputs that naturally share one; other inputs
    that are not given stay natural, in the batch of the first.
    """
    specs = tuple(typed) or recipe.inputs
    if specs is None:
        return None
    if typed and recipe.inputs and recipe.batched:
        specs = _completed(typed, recipe.inputs)
    if batch is None:
        batch = natural_batch if not typed and natural_batch > 1 else None
    if batch is None:
        return specs
    if not recipe.batched:
        return tuple(specs[i % len(specs)] for i in range(batch))
    if any(not spec.shape for spec in specs):
        raise UsageError("--batch-size: an input without dimensions has no batch", option="batch-size")
    return tuple(replace(spec, shape=(batch, *spec.shape[1:])) for spec in specs)


def _completed(typed: Sequence[InputSpec], natural: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
    """The given inputs with the natural ones' dtypes and ranges where they say none, and those that are not given."""
    if len(typed) == 1 and len({spec.shape for spec in natural}) == 1:
        typed = tuple(typed) * len(natural)
    batch = typed[0].shape[:1]
    specs = [replace(spec, shape=(*batch, *spec.shape[1:])) for spec in natural[len(typed) :]]
    alike = [*natural[: len(typed)], *[InputSpec(())] * (len(typed) - len(natural))]
    completed = [replace(g, dtype=g.dtype or n.dtype, high=n.high) for g, n in zip(typed, alike, strict=True)]
    return (*completed, *specs)


def make_tensor(spec: InputSpec, fill: str, dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    """A tensor of the spec.

    Random values come from a separate generator on the CPU, so that a seed gives the same values on every device and
    the global generator stays untouched. For integer and bool dtypes `rand` and `randn` draw integers below the
    spec's `high`: by default 0 or 1, which are valid for every embedding.
    """
    dtype = spec.dtype or dtype
    if fill not in FILLS:
        raise UsageError(unknown("fill", fill, FILLS), option="fill")
    if device.type == "meta":
        return torch.empty(spec.shape, dtype=dtype, device=device)
    if fill in ("ones", "zeros"):
        return torch.full(spec.shape, float(fill == "ones"), dtype=torch.float32).to(device, dtype)
    generator = torch.Generator().manual_seed(seed)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0, spec.high, spec.shape, generator=generator).to(device, dtype)
    draw = torch.randn if fill == "randn" else torch.rand
    wide = dtype if dtype in (torch.float64, torch.complex64, torch.complex128) else torch.float32
    return draw(spec.shape, generator=generator, dtype=wide).to(device, dtype)
