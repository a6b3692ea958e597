"""Compares the rows of operators with TorchLens' list of operations, and runs with --ops with plain ones, bit by bit.

    scripts/sweep ops                            20 models beside TorchLens; every torchvision model bit by bit
    scripts/sweep ops lens --source timm         60 of timm beside TorchLens (also torchvision, hf, own)
    scripts/sweep ops bits --match 'swin*'       outputs, gradients, buffers and random state of these
    scripts/sweep ops --markdown                 all, and write what docs/operators.md says of both

Exits 1 if an operation has neither a row nor a reason, if figures or lines differ, or if a bit does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from _sweep_fork import in_a_fork
from _sweep_models import MODELS, Model, matching

PAGE = Path(__file__).parents[1] / "docs" / "operators.md"
BEGIN, END = "<!-- written by scripts/sweep ops {} --markdown -->\n", "<!-- end -->\n"


def recipe_and_setting(model: Model, train: bool) -> tuple[Any, Any]:
    """Build the recipe and the setting as the command does for the model's options."""
    from hookcli.commands.model import parse_args
    from hookcli.engine.setting import Setting
    from hookcli.sources.finding import find_recipe
    from hookcli.sources.inputs import parse_input

    parser = argparse.ArgumentParser()
    parser.add_argument("--arg", action="append", default=[])
    parser.add_argument("--input", default="")
    parser.add_argument("--batch-size", type=int)
    given = parser.parse_args(model.small)
    inputs = tuple(map(parse_input, re.split(r",(?=\d+x)", given.input))) if given.input else ()
    setting = Setting(inputs=inputs, batch=given.batch_size, natural_batch=2, train=train, targets=train)
    return find_recipe(model.spec, parse_args(given.arg)), setting


# Beside TorchLens.


def lens(model: Model) -> dict[str, Any]:
    """Both sides of one model, run one after the other, since TorchLens leaves PyTorch's functions wrapped."""
    import torch
    from _sweep_lens import compared, operations_of

    from hookcli.engine.capture import Hooking, capture_recipe
    from hookcli.engine.prepare import prepare_run
    from hookcli.table.report import document

    recipe, setting = recipe_and_setting(model, train=False)
    torch.manual_seed(0)
    reports = capture_recipe(recipe, "activations", setting, hooking=Hooking(ops="functions"))
    run = prepare_run(recipe, setting)
    with torch.no_grad():
        found = compared(document(reports)["reports"][0], run.model, operations_of(run.model, run.inputs))
    return vars(found)


# Bit by bit.


def bits(model: Model) -> dict[str, Any]:
    """Compare a run with operators to a plain one, in evaluation and in training, and list the parts that differ."""
    differ = []
    for train in (False, True):
        plain, seen = (_digests(model, train, ops) for ops in (None, "functions"))
        if plain != seen:
            again = _digests(model, train, None)  # even two plain runs may differ
            names = [name for name in plain if plain[name] != seen.get(name)]
            what = "training" if train else "evaluation"
            differ += [f"{what}: {name}" for name in names if plain[name] == again[name]]
            differ += [f"{what}: {name} is new" for name in seen.keys() - plain.keys()]
    return {"differ": differ}


def _digests(model: Model, train: bool, ops: str | None) -> dict[str, Any]:
    """Digests of all that a forward, and in training a backward, leaves."""
    import torch

    from hookcli.engine.prepare import prepare_run
    from hookcli.tensors import tree

    run = prepare_run(*recipe_and_setting(model, train))
    torch.manual_seed(1)
    args, kwargs = ((), run.inputs) if isinstance(run.inputs, dict) else (run.inputs, {})
    with torch.set_grad_enabled(train):
        output = _observed(run.model, args, kwargs, ops, train)
    left = {f"output {path}": x for path, x in tree.leaves(output)}
    left |= {f"gradient of {name}": p.grad for name, p in run.model.named_parameters() if p.grad is not None}
    left |= {f"buffer {name}": x for name, x in run.model.named_buffers()}
    left["random state"] = torch.get_rng_state()
    return {name: _digest(x) for name, x in left.items()}


def _observed(model: Any, args: Any, kwargs: Any, ops: str | None, train: bool) -> Any:
    from contextlib import nullcontext

    from hookcli.hooks.session import HookSession
    from hookcli.probes.activations import ActivationsProbe
    from hookcli.probes.grads import GradsProbe

    args = args if isinstance(args, (tuple, list)) else (args,)
    with HookSession(model, ops=ops, callers_run=True) if ops else nullcontext() as session:
        if session is not None:
            for probe in (ActivationsProbe(), GradsProbe("outputs"))[: 1 + train]:
                probe.attach(session)
        output = model(*args, **kwargs)
        if train:
            _backward(output)
    return output


def _backward(output: Any) -> None:
    """Differentiate the sum of all that the model returned."""
    import torch

    from hookcli.tensors import tree

    torch.autograd.backward(sum(x.float().sum() for _, x in tree.leaves(output) if x.requires_grad))


def _digest(x: Any) -> str:
    import torch

    x = x.detach()
    x = x.to_dense() if x.layout is not torch.strided else x
    return hashlib.blake2b(x.contiguous().flatten().view(torch.uint8).numpy().data, digest_size=16).hexdigest()


# The page.


def table(found: dict[str, dict[str, Any]]) -> str:
    """A row per model: operations, rows, and how many have which reason."""
    from _sweep_lens import REASONS

    names = [name for name in REASONS if any(name in one["reasons"] for one in found.values())]
    lines = [f"| Model | Operations | Rows | {' | '.join(REASONS[name] for name in names)} |"]
    lines.append(f"| :--- |{' ---: |' * (len(names) + 2)}")
    for name, one in found.items():
        cells = [str(one["operations"]), str(one["rows"]), *(str(one["reasons"].get(n, 0)) for n in names)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_page(what: str, found: dict[str, dict[str, Any]]) -> None:
    """Replace what the page says of this."""
    from importlib.metadata import version

    releases = ", ".join(f"{n} {version(n)}" for n in ("torch", "torchvision", "timm", "transformers", "torchlens"))
    said = table(found) if what == "lens" else _same_bits(found)
    begin, text = BEGIN.format(what), f"{date.today()}, {releases}.\n\n{said}"
    block = re.compile(f"{re.escape(begin)}.*?{re.escape(END)}", re.DOTALL)
    PAGE.write_text(block.sub(lambda _: f"{begin}\n{text}\n\n{END}", PAGE.read_text()))


def _same_bits(found: dict[str, dict[str, Any]]) -> str:
    same = sum(not _failed(one) for one in found.values())
    left = "outputs in evaluation and in training, gradients, buffers and random state"
    return f"{same} of {len(found)} torchvision models leave the same bits with `--ops` as without: {left}."


def swept(what: str, models: Sequence[Model], timeout: float) -> dict[str, dict[str, Any]]:
    """The results by model; each is printed as it comes."""
    found = {}
    for number, model in enumerate(models, 1):
        one = found[model.name] = in_a_fork(partial(globals()[what], model), timeout)
        print(f"{what} {number}/{len(models)} {model.name}: {json.dumps(one)}", flush=True)
    return found


def main(arguments: Sequence[str]) -> int:
    """The work of `scripts/sweep ops`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["lens", "bits"], help="lens, bits [both]")
    parser.add_argument("--source", choices=tuple(MODELS), help="[20 of several for lens, torchvision for bits]")
    parser.add_argument("--match", default="*", help="only models whose name matches one of these globs (A,B)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one model")
    parser.add_argument("--markdown", action="store_true", help="write what docs/operators.md says of them")
    options = parser.parse_args(arguments)
    if unknown := {*options.what} - {"lens", "bits"}:
        parser.error(f"no {', '.join(unknown)}: give lens, bits or neither")
    if options.markdown and (options.match != "*" or options.source):
        parser.error("--markdown chooses the models itself; leave out --match and --source")
    import torch  # OpenMP's threads do not survive a fork

    torch.set_num_threads(1)
    default = {"lens": "together", "bits": "torchvision"}
    found = {
        what: swept(what, matching(options.source or default[what], options.match), options.timeout)
        for what in options.what
    }
    bad = {what: [n for n, one in each.items() if _failed(one)] for what, each in found.items()}
    for what, names in bad.items():
        print(f"{what}: {len(found[what]) - len(names)} of {len(found[what])} models", *names)
        if options.markdown:
            write_page(what, found[what])
    return int(any(bad.values()))


def _failed(one: dict[str, Any]) -> bool:
    return bool("error" in one or one.get("faults") or one.get("differ"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
