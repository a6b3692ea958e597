"""The figures of a model with trained weights by PyTorch alone, in float64, beside hookcli's reports.

Run in the model's environment: `_trained_truth.py MODEL FOLDER`, where FOLDER has a report of each command as JSON.
Prints, as JSON, how many figures were compared and how far the worst is off, relative to its size.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import _trained_models
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

SINGLE = ("chgnet",)  # graphs whose class has float32 written into it: only sums are in float64 then
LOOKED_AT = 60  # modules of a sweep
Pair = tuple[str, float, float]  # what it is, by hookcli, and by PyTorch


def built(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model and its arguments in float64, with gradients off for its parameters."""
    model, given = getattr(_trained_models, name)()
    model = model.eval().requires_grad_(False)
    wide = lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x  # noqa: E731
    if name not in SINGLE:
        model, given = model.double(), pytree.tree_map(wide, given)
    args = () if isinstance(given, dict) else given if isinstance(given, tuple) else (given,)
    return model, args, given if isinstance(given, dict) else {}


def tensors(output: Any) -> dict[str, Tensor]:
    """The floating-point tensors of an output by their path, in hookcli's spelling."""
    output = dict(output) if isinstance(output, Mapping) else output
    leaves = pytree.tree_flatten_with_path(output)[0]
    found = {pytree.keystr(path).replace("'", '"'): x for path, x in leaves if isinstance(x, Tensor)}
    # Copies, which an in-place operation that comes after does not reach.
    return {path: x.detach().to(torch.float64, copy=True) for path, x in found.items() if x.is_floating_point()}


def of_sweep(report: Mapping[str, Any], model: nn.Module, run: Any) -> Iterator[Pair]:
    """The change of the output that changes most, for each module set to zero by a hook."""
    first = tensors(run())
    zero = lambda x: x * 0 if isinstance(x, Tensor) and x.is_floating_point() else x  # noqa: E731, of the same graph
    rows = [row for row in report["rows"] if isinstance(row["output_change"], float)]
    for row in rows[:: max(1, len(rows) // LOOKED_AT)]:
        handle = model.get_submodule(row["fqn"]).register_forward_hook(lambda m, a, y: pytree.tree_map(zero, y))
        now = tensors(run())
        handle.remove()
        changes = [float((now[path] - x).norm() / x.norm()) for path, x in first.items()]
        yield f"sweep {row['fqn']}", row["output_change"], max(changes)


def of_spectrum(report: Mapping[str, Any], model: nn.Module, run: Any) -> Iterator[Pair]:
    """The effective rank and largest singular value of each output and weight, by their singular values."""
    seen: dict[str, list[Any]] = {}
    names = {row["fqn"] for row in report["rows"] if row["kind"] == "output"}
    for fqn in names:
        keep = lambda m, a, y, fqn=fqn: seen.setdefault(fqn, []).append(tensors(y))  # noqa: E731
        model.get_submodule(fqn).register_forward_hook(keep)
    run()
    parameters = dict(model.named_parameters())
    for row in report["rows"]:
        columns = row["shape"][1]
        if row["kind"] == "output":
            parts = [one[row["path"]] for one in seen[row["fqn"]]]
            matrix = torch.cat([x.movedim(-1 if x.shape[-1] == columns else 1, -1).reshape(-1, columns) for x in parts])
        else:
            matrix = parameters[row["fqn"]].double().flatten(1)
        values = torch.linalg.svdvals(matrix)
        shares = values / values.sum()
        yield f"rank {row['fqn']}", row["effective_rank"], float(torch.special.entr(shares).sum().exp())
        yield f"norm {row['fqn']}", row["spectral_norm"], float(values[0])


def of_attention(report: Mapping[str, Any], model: nn.Module, kwargs: dict[str, Any]) -> Iterator[Pair]:
    """Entropy and weights of BERT's heads over real tokens, from the weights that Transformers returns."""
    weights = model(**kwargs, output_attentions=True).attentions
    real = kwargs["attention_mask"].bool()
    rows = {(row["fqn"], row["head"]): row for row in report["rows"]}
    for (fqn, head), row in rows.items():
        of_head = weights[int(fqn.split(".")[2])][:, head].double()[real]
        places = real.nonzero()[:, 1:]
        keys = torch.arange(of_head.shape[1])
        offsets = (of_head.argmax(1) - places[:, 0]).tolist()
        figures = {
            "queries": len(of_head),
            "entropy": torch.special.entr(of_head).sum(1).mean(),
            "max_weight": of_head.max(),
            "first_share": of_head[:, 0].mean(),
            "self_share": of_head.gather(1, places).mean(),
            "distance": (of_head * (keys - places).abs()).sum(1).mean(),
            "offset_share": max(map(offsets.count, offsets)) / len(offsets),
        }
        yield from ((f"{name} {fqn} {head}", row[name], float(value)) for name, value in figures.items())


def main(name: str, folder: Path) -> None:
    model, args, kwargs = built(name)
    report = {path.stem: json.loads(path.read_text())["reports"][0] for path in folder.glob("*.json")}
    with torch.set_grad_enabled(name in SINGLE):
        pairs = list(of_sweep(report["sweep"], model, lambda: model(*args, **kwargs)))
        if report["attention"]["rows"]:
            pairs += of_attention(report["attention"], model, kwargs)
        pairs += of_spectrum(report["spectrum"], model, lambda: model(*args, **kwargs))
    scale = {"sweep": 1.0}
    off = {what: abs(a - b) / max(abs(b), scale.get(what.split()[0], 0.0), math.ulp(0.0)) for what, a, b in pairs}
    worst = max(off, key=off.__getitem__)
    parameters = sum(p.numel() for p in model.parameters())
    print(json.dumps({"figures": len(off), "worst": worst, "off": off[worst], "parameters": parameters}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
