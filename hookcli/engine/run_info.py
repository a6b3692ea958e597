"""Describes a run, for the `meta` of its reports."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.probes.shared.module_facts import containers
from hookcli.table.formatting import listed
from hookcli.tensors import tree
from hookcli.tensors.torch_private import noted

UNSET: Any = ...


@dataclass
class RunInfo:
    """A description of a run: the model's origin, the settings and the outcome. `to_meta` leaves out unset fields."""

    torch: str = UNSET
    device: str = UNSET
    dtype: str = UNSET
    mode: str = UNSET
    input: str = UNSET
    data: str = UNSET
    """The option that named the real input, as typed."""
    batches: int = UNSET
    """Batches that were run to their end, where several were asked for."""
    target: str = UNSET
    """Shapes of the target in each batch of real input, and who got it."""
    not_on_meta: str = UNSET
    """Why the model had to run for real although shapes alone were asked for."""
    simulated: str = UNSET
    """The device whose memory is computed, where that is not the CPU's."""
    fill: str = UNSET
    seed: int = UNSET
    source: Mapping[str, Any] = field(default_factory=dict)
    """Entries of the model's source, such as the weights' name; they come among the others."""
    torchvision: str = UNSET
    processes: int = UNSET
    rank: int = UNSET
    backend: str = UNSET
    parallel: str = UNSET
    fastpath: bool = UNSET
    ops: str = UNSET
    """The operators that have rows beside the modules: "functions" or "aten"."""
    edits: Sequence[str] = UNSET
    compiled: str = UNSET
    input_requires_grad: bool = UNSET
    optimizer: str = UNSET
    amp: str = UNSET
    """The precision of `torch.autocast`, where it is simulated."""
    call: str = UNSET
    backward_vector: str = UNSET
    loss: str = UNSET
    no_own_loss: str = UNSET
    """Why the `loss` that the model returned was not differentiated; "" if it returned none."""
    loss_reduction: str = UNSET
    loss_value: float | None = UNSET
    """None for a loss on the meta device."""
    random: str = UNSET
    error: str = UNSET
    seconds: float = UNSET
    hookcli_seconds: float = UNSET
    """Seconds of `seconds` that hookcli's own work took."""
    complete: bool = UNSET
    containers: Sequence[str] = UNSET
    """Names of modules that are no level of depth; see hookcli.table.levels."""
    notes: Sequence[str] = UNSET
    """Remarks on how to read the figures."""

    def overlaid(self, other: RunInfo) -> RunInfo:
        """This description with the fields that the other one sets."""
        given = {f.name: getattr(other, f.name) for f in fields(other)}
        return replace(self, **{name: value for name, value in given.items() if value is not UNSET})

    def to_meta(self) -> dict[str, Any]:
        """The entries of a report's `meta`, with notes on what this PyTorch lacks."""
        meta: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if name == "source":
                meta |= value
            elif value is not UNSET and (value or name != "no_own_loss"):
                meta[name] = value
        return noted(meta)


def describe_run(model: nn.Module, inputs: Any) -> RunInfo:
    """Describe PyTorch's version and the model's device, dtype, mode and input shapes."""
    given = [t for _, t in tree.leaves(inputs)]
    tensors: list[Tensor] = [*model.parameters(), *given, torch.empty(0)]
    dtype = floating_dtype(model.parameters()) or floating_dtype(given) or tensors[0].dtype
    return RunInfo(
        torch=torch.__version__,
        device=str(tensors[0].device),
        dtype=str(dtype).removeprefix("torch."),
        mode="train" if model.training else "eval",
        input=", ".join(map(tree.shape_text, given)),
        containers=containers(model) or UNSET,
        notes=(tensors[0].is_meta and _of_meta(model)) or UNSET,
    )


def _of_meta(model: nn.Module) -> Sequence[str]:
    """Name what a run on the meta device can't check: the range of indices into embeddings."""
    sizes = {n: m.num_embeddings for n, m in model.named_modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
    if not sizes:
        return []
    ranges = listed([f"{fqn or '(model)'} takes 0 to {size - 1}" for fqn, size in sizes.items()], 2)
    return [f"the meta device does not check indices ({ranges}); `hookcli activations` with the same input does"]


def torchvision_version() -> str:
    """torchvision's version if it was imported, else UNSET."""
    version: str = getattr(sys.modules.get("torchvision"), "__version__", UNSET)
    return version


def floating_dtype(tensors: Iterable[Tensor]) -> torch.dtype | None:
    """The first floating-point dtype of more than eight bits (those only store weights), else the first complex one."""
    dtypes = [x.dtype for x in tensors]
    real = (dtype for dtype in dtypes if dtype.is_floating_point and dtype.itemsize > 1)
    return next(real, None) or next((dtype for dtype in dtypes if dtype.is_complex), None)


def model_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of a model's generated input: that of its parameters, else of its buffers, else PyTorch's default."""
    return floating_dtype(model.parameters()) or floating_dtype(model.buffers()) or torch.get_default_dtype()
