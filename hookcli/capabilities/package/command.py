"""hookcli package"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookcli.capabilities.package.layout import COLUMNS
from hookcli.commands.destination import check_writable
from hookcli.commands.model import find_recipe
from hookcli.commands.option_fields import option
from hookcli.commands.options import DEFAULT_MODEL, SEVERAL, Options, all_but, model_argument
from hookcli.commands.output import Output, remark
from hookcli.commands.probe_command import feedback_of, inspect_model, setting_of
from hookcli.commands.progress import working
from hookcli.commands.typer_classes import TYPED
from hookcli.errors import UsageError
from hookcli.registry import load as load_plugin
from hookcli.sources.archive import INPUT_RESOURCE, Archive, read_archive
from hookcli.system.escaping import shell_path, shell_word
from hookcli.system.files import replacing
from hookcli.table import Report, Row, formatting
from hookcli.table.meta import Meta

if TYPE_CHECKING:
    from hookcli.engine.prepare import PreparedRun
    from hookcli.hooks.packaging import PackagedModule, Rule

EXAMPLES = (
    "hookcli package resnet50 --extern 'torchvision.**' --output resnet50.pt2pkg",
    "hookcli package net.py:Net --intern net --extern '**' --output net.pt2pkg",
    "hookcli package --load net.pt2pkg --trust",
)
_MODEL = f"A torchvision name, module:callable or file.py:callable [{DEFAULT_MODEL}]."
FIRST = "extern intern mock deny load trust weights columns format output"
_KINDS = ("extern", "intern", "mock", "deny")
_SUFFIXES = (".pt2pkg", ".pt", ".package")
_ACTIONS = ("blocked", "intern", "mock", "extern")  # in the order of rows


@dataclass(frozen=True)
class PackageOptions:
    """Options of `hookcli package` only. Its --output names the package, not the report."""

    panel = "Package"

    extern: list[str] = option(list, "Modules to import on loading: 'torchvision.**', '*.io'.", metavar="GLOB")
    intern: list[str] = option(list, "Modules to put into the package as source.", metavar="GLOB")
    mock: list[str] = option(list, "Modules to replace by a stub.", metavar="GLOB")
    deny: list[str] = option(list, "Modules that must not be needed.", metavar="GLOB")
    load: str | None = option(None, "Run shapes on a package's model.", metavar="FILE")
    trust: bool = option(False, "With --load: run the code in the package.")
    resource: str | None = option(None, "With --load: model/model.pkl ...", metavar="NAME")
    output: str | None = option(
        None, "Write the package to FILE; with --load: the report.", short="-o", metavar="FILE", panel="Output"
    )


def package(
    ctx: typer.Context,
    model: Annotated[str | None, model_argument("MODEL", _MODEL)] = None,
    *,
    own: PackageOptions,
    options: Annotated[Options, all_but("output", "ops", "batches", *SEVERAL)],
) -> int:
    """Export a model with torch.package; show what becomes of modules.

    The first pattern that matches a module decides, in the order typed. torch and the standard library (except sys and
    io) are always extern. Modules that block the export are listed, with patterns that work.
    """
    if own.load is not None:
        patterns = [f"--{kind}" for kind in _KINDS if getattr(own, kind)]
        if model or patterns:
            raise UsageError(f"--load {own.load}: loads a package; leave out {'MODEL' if model else patterns[0]}")
        trust = ["trust=true"] if own.trust else []  # without it the source refuses to load
        resource = [f"resource={own.resource}"] if own.resource is not None else []
        options = replace(options, output=own.output, arg=[*options.arg, *trust, *resource])
        return inspect_model(f"package:{own.load}", load_plugin("probes", "shapes"), options)
    for name in ("trust", "resource", "depth", "match", "type"):
        if (vars(own) | vars(options))[name]:
            raise UsageError(f"--{name}: requires --load FILE, which runs a package's model")
    return _export_model(model or DEFAULT_MODEL, ctx.meta[TYPED], own.output, options)


def _export_model(spec: str, typed: Sequence[str], output: str | None, options: Options) -> int:
    """Export the model, keep the package at `output`, and write the report of what the hooks saw.

    `typed` are the command's arguments as typed; patterns apply in their order. Raises UsageError if modules block the
    export, after writing the report that lists them.
    """
    patterns, rest = _split_patterns(typed)
    path = Path(output) if output else None
    if path:
        if path.suffix not in _SUFFIXES:
            needed = f"{', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]} (the report goes to stdout, as --format says)"
            raise UsageError(f"--output {path}: this is the package's file, which needs the suffix {needed}")
        check_writable(path)
    report = Output(options)
    report.check_columns(COLUMNS)
    with working(options) as progress:
        from hookcli.engine.prepare import prepare_run
        from hookcli.hooks.packaging import BlockedError, Rule

        setting = replace(setting_of(options, bool(options.train)), needs_input=False)
        if setting.device.type == "meta":
            raise UsageError("--device meta: no values to export")
        if spec.startswith("package:"):
            file = shell_path(spec.removeprefix("package:"))
            raise UsageError(f"{spec} is already a package: read it with hookcli package --load {file}")
        rules = [Rule(kind, pattern) for kind, pattern in patterns]
        run = prepare_run(find_recipe(spec, options), setting, feedback=feedback_of(options, progress))
        progress.stage(f"exporting {run.name}")
        problem = None
        try:
            modules, archive = _exported(run, rules, path)
        except BlockedError as error:
            modules, archive = list(error.modules), None
            problem = UsageError(_blocked(run.name, rules, modules, rest))
    report.write([_report(run, modules, archive)], error=problem)
    if problem:
        raise problem
    if path and archive:
        remark(f"wrote {path}: {path.stat().st_size:,} bytes", options)
    return 0


def _split_patterns(typed: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split a command line into its patterns with their kinds, in order, and the other words."""
    patterns, rest = [], []
    words = iter(typed)
    for word in words:
        option, equals, value = word.partition("=")
        kind = option.removeprefix("--")
        if option.startswith("--") and kind in _KINDS:
            patterns.append((kind, value if equals else next(words, "")))
        else:
            rest.append(word)
    return patterns, rest


def _exported(run: PreparedRun, rules: Sequence[Rule], path: Path | None) -> tuple[list[PackagedModule], Archive]:
    """Write the package; a file at `path` is replaced only if all went well."""
    from importlib.util import find_spec

    from hookcli.capabilities.package.source import noted_input
    from hookcli.hooks.packaging import export, idle_rules

    # The pickle's folder can't have the name of a module.
    folder = "hookcli_model" if "model" in sys.modules or find_spec("model") is not None else "model"
    note = noted_input(run.inputs)
    texts = {INPUT_RESOURCE: json.dumps(note)} if note else {}
    with ExitStack() as stack:
        if path:
            file = stack.enter_context(replacing(path))
        else:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hookcli-")), "model.pt2pkg")
        modules = export(run.model, run.name, rules, file, folder, texts)
        for rule, reason in idle_rules(rules, modules):
            raise UsageError(f"{rule} {reason}; {run.name} needs {_named(modules)}")
        archive = read_archive(file)
    return modules, archive


def _blocked(name: str, rules: Sequence[Rule], modules: Sequence[PackagedModule], rest: Sequence[str]) -> str:
    """A message that names the blocking modules, and on a second line the command that works."""
    from hookcli.capabilities.package.rules import suggestion
    from hookcli.hooks.packaging import idle_rules

    blocking = [m for m in modules if m.problem]
    what = f"{len(blocking)} module{'s block' if len(blocking) > 1 else ' blocks'} the export of {name}"
    useless = [f"{rule} {reason}" for rule, reason in idle_rules(rules, modules)]
    extra = f"; {useless[0]}" if useless else ""
    passing = suggestion(rules, modules)
    added = [word for rule in passing for word in (f"--{rule.kind}", rule.pattern)]
    denied = [str(rule) for rule in rules if rule.kind == "deny" and rule not in passing]
    without = f", without {' '.join(denied)}" if denied else ""
    command = " ".join(map(shell_word, ["hookcli", "package", *rest, *added]))
    return f"{what}: {_named(blocking)}{extra}. This works{without}:\n  {command}"


def _named(modules: Sequence[PackagedModule], most: int = 6) -> str:
    """The modules' packages with counts, or a package's only module by name: torchvision.models.resnet, torch (9)."""
    count = Counter(m.top for m in modules if not m.is_pickle)
    whole = {m.top: m.name for m in modules if not m.is_pickle}
    names = [whole[top] if number == 1 else f"{top} ({number})" for top, number in count.items()]
    return formatting.listed(names, most)


def _report(run: PreparedRun, modules: Sequence[PackagedModule], archive: Archive | None) -> Report:
    """A report with a row per module, or per blocking module; the model's pickle comes first."""
    from hookcli.engine.run_info import finished

    listed = modules if archive else [m for m in modules if m.problem]
    rows = [_row(module, archive) for module in listed]
    rows.sort(key=lambda row: (_ACTIONS.index(row["action"]), not row["module"].startswith("<"), row["module"]))
    totals = dict(Counter(row["action"] for row in rows))
    if archive:
        totals |= {"tensor_bytes": archive.tensor_bytes, "archive_bytes": archive.file_bytes}
    meta: Meta = {**finished(run.info), "exported": archive is not None}
    return Report("package", run.name, COLUMNS, rows, meta, totals)


def _row(module: PackagedModule, archive: Archive | None) -> Row:
    size = None
    if archive and module.is_pickle:
        size = archive.sizes[archive.pickles[0]]
    elif archive and module.action in ("intern", "mock"):
        size = archive.source_bytes(module.name)
    action = "blocked" if module.problem else module.action
    values = {"module": module.name, "action": action, "rule": module.problem or module.rule, "size": size}
    return Row(values | {"needed_by": module.needed_by or None, "index": module.index})
