"""Settings of a model that is built from a recipe, the devices to choose from, and who hears how far a run is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hookcli.errors import UsageError, shortened, unknown
from hookcli.hooks.option_values import COMPILE, COMPILE_MODES
from hookcli.sources.base import InputSpec
from hookcli.sources.data.base import Data

META = torch.device("meta")


@dataclass(frozen=True)
class Feedback:
    """`stage` is called when a stage of a run begins ("running resnet50 on cpu"), `remark` with what people should know
    of the run, and `follow`, when a model is about to run, with a function that says how far it is: any thread may ask
    it while the stage lasts. By default nobody hears of any."""

    stage: Callable[[str], object] = len
    remark: Callable[[str], object] = len
    follow: Callable[[Callable[[], str]], object] = callable


@dataclass(frozen=True, slots=True)
class Setting:
    """Parsed options of a command on how to build a model and its input."""

    inputs: Sequence[InputSpec] = ()
    data: Data | None = None
    """Real input, in place of a generated one."""
    batch: int | None = None
    natural_batch: int = 1
    """Batch size where neither `inputs` nor `batch` gives one."""
    fill: str = "randn"
    seed: int = 0
    weights: str | None = None
    strict: bool = True
    train: bool | None = False
    """The model's mode; None: each module keeps its own."""
    targets: bool = False
    """True if a detector in training gets targets, too."""
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype | None = None
    """The dtype that the model and its input are cast to; None: they keep theirs."""
    needs_input: bool = True
    """True if an unknown input is an error."""
    part: int = 0
    parts: int = 1
    """This process's part of the batch, as its rank and the number of processes; all parts are equal."""
    compile: str | None = None
    """The backend or mode with which torch.compile compiles the model."""
    backend: str | None = None
    parallel: str | None = None
    """The processes' way to communicate and to share the model (None: gradients stay with each)."""
    shard: Callable[[nn.Module], object] | None = None
    """Shards the model's parameters over the processes, in place, and moves them to the device."""


def compile_settings(word: str) -> dict[str, Any]:
    """The arguments of torch.compile for the name of a backend or mode. Raises UsageError for any other word."""
    if os.environ.get("TORCH_COMPILE_DISABLE") == "1":
        raise UsageError(
            "--compile: TORCH_COMPILE_DISABLE=1 is set, so nothing is compiled: unset it", option="compile"
        )
    if word in COMPILE_MODES:
        return {"mode": word}
    if word not in torch.compiler.list_backends(exclude_tags=()):
        names = dict.fromkeys([*COMPILE, *torch.compiler.list_backends()])  # not the backends of PyTorch's own tests
        raise UsageError(unknown("--compile", word, [*names]), option="compile")
    return {"backend": word}


def parse_device(name: str) -> torch.device:
    """The device of that name. Raises UsageError for one that is not available, naming those that are."""
    try:
        device = torch.device(name)
        if device.type != "meta":
            torch.empty(1, device=device)
    except Exception as error:  # each backend fails in its own way
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        count = torch.accelerator.device_count() if accelerator else 0
        available = ", ".join(["cpu", "meta", *(f"{accelerator}:{i}" for i in range(count))])
        why = f"a GPU is {accelerator or 'cuda'}" if name.lower().startswith("gpu") else "not available"
        message = f"--device {shortened(name)}: {why}; available: {available}"
        raise UsageError(message, option="device") from error
    return device
