"""Describes a run, for the `meta` of its reports."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from hookcli.probes.shared.module_facts import containers
from hookcli.sources.catalog.transformers import LANGUAGE
from hookcli.table.formatting import listed
from hookcli.table.meta import Meta, in_order, with_notes
from hookcli.table.names import in_words
from hookcli.tensors import tree
from hookcli.tensors.torch_private import noted


def finished(meta: Meta) -> Meta:
    """The `meta` of a report of the run, with notes on what this PyTorch lacks."""
    return noted(in_order(meta))


def unquantized(meta: Meta) -> list[str]:
    """A note on a configuration whose quantization the weights lack."""
    method = meta.get("unquantized")
    return [f"weights are random, without the quantization of its configuration ({method})"] if method else []


def headless(meta: Meta) -> str:
    """A sentence on a model of Transformers that was built without the head that most use it with; "" for others."""
    task = meta.get("headless")
    if not task:
        return ""
    head = "its language-model head" if task in LANGUAGE else "a head"
    return f"{meta.get('architecture')}, without {head}: --task {task} has {'it' if task in LANGUAGE else 'one'}"


def describe_run(model: nn.Module, inputs: object) -> Meta:
    """Describe PyTorch's version and the model's device, dtype, mode and input shapes."""
    leaves = [t for _, t in tree.leaves(inputs)]
    parameters = [*model.parameters()]
    tensors: list[Tensor] = [*parameters, *leaves, torch.empty(0)]
    dtype = floating_dtype(parameters) or floating_dtype(leaves) or tensors[0].dtype
    meta: Meta = {
        "torch": torch.__version__,
        "device": str(tensors[0].device),
        "dtype": str(dtype).removeprefix("torch."),
        "mode": "train" if model.training else "eval",
        "input": ", ".join(map(tree.shape_text, leaves)),
    }
    if leaves and leaves[0].dim() > 1:
        meta["batch"] = leaves[0].size(0)
    if names := containers(model):
        meta["containers"] = names
    modules = model.named_modules() if tensors[0].is_meta else ()
    sizes = {fqn: m.num_embeddings for fqn, m in modules if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
    if not sizes:
        return meta
    ranges = listed([f"{in_words(fqn)} takes 0 to {size - 1}" for fqn, size in sizes.items()], 2)
    how = "`hookcli activations` with the same input does"
    return with_notes(meta, f"the meta device does not check indices ({ranges}); {how}")


def torchvision_version() -> Meta:
    """torchvision's version if it was imported."""
    version = getattr(sys.modules.get("torchvision"), "__version__", None)
    return {"torchvision": version} if version else {}


def floating_dtype(tensors: Iterable[Tensor]) -> torch.dtype | None:
    """The first floating-point dtype of more than eight bits (those only store weights), else the first complex one."""
    dtypes = [x.dtype for x in tensors]
    real = (dtype for dtype in dtypes if dtype.is_floating_point and dtype.itemsize > 1)
    return next(real, None) or next((dtype for dtype in dtypes if dtype.is_complex), None)


def model_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of a model's generated input: its parameters', else its buffers', else PyTorch's default."""
    return floating_dtype(model.parameters()) or floating_dtype(model.buffers()) or torch.get_default_dtype()
