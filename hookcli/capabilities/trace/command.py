"""hookcli trace"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from functools import partial

from hookcli.capabilities.trace.layout import COLUMNS as COLUMNS
from hookcli.commands.option_fields import choice, option, words_of
from hookcli.commands.options import DEFAULT_MODEL, Model, OneBatchOptions
from hookcli.commands.probe_command import RunOptions, inspect_model
from hookcli.commands.run_options import PassesOptions
from hookcli.errors import UsageError, unknown
from hookcli.hooks.kinds import OPTIMIZER as OPTIMIZER_KINDS
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.option_values import OPTIMIZERS
from hookcli.registry import load
from hookcli.table import Report, Row, Skipped

EXAMPLES = (
    "hookcli trace resnet18 --kinds 'forward*,post_accumulate_grad' --depth all",
    "hookcli trace resnet18 --summary --sort -kept",
    "hookcli trace resnet18 --format chrome --output trace.json",
)
FIRST = "kinds summary input weights match depth format output loss sort columns"


@dataclass(frozen=True)
class TraceOptions:
    """Options of `hookcli trace` alone."""

    panel = "Hooks"

    kinds: str = option(
        "*", "Only these kinds of hooks; globs too (hookcli plugins --hooks lists all).", metavar="A,B,..."
    )
    summary: bool = option(False, "Show counts per module and kind.")
    globally: bool = option(
        False, "Register through PyTorch's global functions, and mark where the order differs.", "--global"
    )
    optimizer: str | None = choice(None, "Optimizer used for the step [sgd].", OPTIMIZERS)


def trace(model: Model = DEFAULT_MODEL, *, own: TraceOptions, step: PassesOptions, options: OneBatchOptions) -> int:
    """Show every hook that fires, in order, with time and memory.

    Forward and backward, as they happen: `hookcli flow` shows which tensors go where in forward, `hookcli graph` the
    nodes of backward.

    Covers building the model, forward, backward, an optimizer's step, and saving and loading its state dict.
    """
    if own.globally and own.summary:
        raise UsageError("--global and --summary: a summary has no order to compare; give one of them")
    chosen = _kinds(own.kinds)
    steps = bool(set(chosen) & set(OPTIMIZER_KINDS))
    if own.optimizer and not steps:
        raise UsageError(f"--optimizer {own.optimizer}: --kinds {own.kinds} has no kind of optimizer hook")
    step = replace(
        step,
        optimizer=(own.optimizer or OPTIMIZERS[0]) if steps else None,
        state_dict=any("state_dict" in kind for kind in chosen),
    )
    return inspect_model(
        model,
        partial(load("probes", "trace"), chosen, insist=own.kinds != "*", summary=own.summary),
        options,
        RunOptions(train=True, step=step),
        compare=_mark_differences if own.globally else None,
    )


def _kinds(text: str) -> list[HookKind]:
    """The kinds that the names or globs mean, in PyTorch's order."""
    wanted = words_of([text])
    for name in wanted:
        if not any(fnmatchcase(kind, name) for kind in HookKind):
            raise UsageError(unknown("--kinds", name, HookKind))
    chosen = [kind for kind in HookKind if any(fnmatchcase(kind, name) for name in wanted)]
    if not chosen:
        raise UsageError("--kinds: name at least one, or leave the option out for all")
    return chosen


# What module hooks are registered for; the other kinds have no global form.
_MODULE_KINDS = ("forward_pre", "forward", "full_backward_pre", "full_backward")


def _mark_differences(globally: Report, locally: Report) -> Report:
    """The global trace; a note tells where the module hooks of the local one fired in another order, or not at all."""
    here, there = ([_firing(row) for row in r.rows if row["kind"] in _MODULE_KINDS] for r in (globally, locally))
    notes: dict[Firing, str] = {}
    missing: list[Skipped] = []
    for how, a, b, c, d in SequenceMatcher(None, here, there, autojunk=False).get_opcodes():
        if how != "equal":
            notes |= {one: "in another order locally" if one in there else "globally only" for one in here[a:b]}
            gone = (firing for firing in there[c:d] if firing not in here)
            missing += [Skipped(fqn, f"{kind}: fires with local hooks only") for kind, fqn, *_ in gone]
    rows = [row.having({"note": notes[firing]}) if (firing := _firing(row)) in notes else row for row in globally.rows]
    differ = f"{len(notes) + len(missing)} differ from local hooks"
    totals = {**globally.totals, "order": differ if notes or missing else "same order as local hooks"}
    return replace(globally, rows=rows, totals=totals, skipped=[*globally.skipped, *dict.fromkeys(missing)])


Firing = tuple[str, str, int, int]


def _firing(row: Row) -> Firing:
    return row["kind"], row.fqn, row["call"], row.get("pass", 0)
