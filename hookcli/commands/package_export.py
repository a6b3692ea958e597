"""Exports a model with torch.package and reports on it: the work of `hookcli package MODEL`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hookcli.commands.destination import check_writable
from hookcli.commands.model import find_recipe
from hookcli.commands.options import Options
from hookcli.commands.output import Output, remark
from hookcli.commands.probe_command import feedback_of, setting_of
from hookcli.commands.progress import Progress, working
from hookcli.errors import UsageError
from hookcli.sources.archive import INPUT_RESOURCE, Archive, read_archive
from hookcli.system.escaping import shell_path, shell_word
from hookcli.system.files import replacing
from hookcli.table import Report, Row, formatting
from hookcli.table.columns.layouts import PACKAGE
from hookcli.table.meta import Meta

if TYPE_CHECKING:
    from hookcli.engine.prepare import PreparedRun
    from hookcli.hooks.packaging import PackagedModule, Rule

KINDS = ("extern", "intern", "mock", "deny")
SUFFIXES = (".pt2pkg", ".pt", ".package")
_ACTIONS = ("blocked", "intern", "mock", "extern")  # in the order of rows


def export_model(spec: str, typed: Sequence[str], output: str | None, options: Options) -> int:
    """Export the model, keep the package at `output`, and write the report of what the hooks saw.

    `typed` are the command's arguments as typed; patterns apply in their order. Raises UsageError if modules block the
    export, after writing the report that lists them.
    """
    patterns, rest = split_patterns(typed)
    path = Path(output) if output else None
    if path and path.suffix not in SUFFIXES:
        raise UsageError(
            f"--output {path}: this is the package's file, which needs the suffix {', '.join(SUFFIXES[:-1])} "
            f"or {SUFFIXES[-1]} (the report goes to stdout, as --format says)"
        )
    if path:
        check_writable(path)
    shown = Output(options)
    shown.check_columns(PACKAGE)
    with working(options) as progress:
        from hookcli.hooks.packaging import BlockedError, Rule

        rules = [Rule(kind, pattern) for kind, pattern in patterns]
        run = _prepared(spec, options, progress)
        progress.stage(f"exporting {run.name}")
        problem = None
        try:
            modules, archive = _exported(run, rules, path)
        except BlockedError as error:
            modules, archive = list(error.modules), None
            problem = _blocked(run.name, rules, modules, rest)
    shown.write([_report(run, modules, archive)])
    if problem:
        raise UsageError(problem)
    if path and archive:
        remark(f"wrote {path}: {path.stat().st_size:,} bytes", options)
    return 0


def split_patterns(typed: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split a command line into its patterns with their kinds, in order, and the other words."""
    patterns, rest = [], []
    words = iter(typed)
    for word in words:
        option, equals, value = word.partition("=")
        kind = option.removeprefix("--")
        if option.startswith("--") and kind in KINDS:
            patterns.append((kind, value if equals else next(words, "")))
        else:
            rest.append(word)
    return patterns, rest


def _prepared(spec: str, options: Options, progress: Progress) -> PreparedRun:
    from hookcli.engine.prepare import prepare_run

    setting = replace(setting_of(options, bool(options.train)), needs_input=False)
    if setting.device.type == "meta":
        raise UsageError("--device meta: no values to export")
    if spec.startswith("package:"):
        file = shell_path(spec.removeprefix("package:"))
        raise UsageError(f"{spec} is already a package: read it with hookcli package --load {file}")
    return prepare_run(find_recipe(spec, options), setting, feedback=feedback_of(options, progress))


def _exported(run: PreparedRun, rules: Sequence[Rule], path: Path | None) -> tuple[list[PackagedModule], Archive]:
    """Write the package; a file at `path` is replaced only if all went well."""
    from importlib.util import find_spec

    from hookcli.hooks.packaging import export, idle_rules
    from hookcli.sources.package import noted_input

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
    from hookcli.engine.package_rules import suggestion
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

    shown = modules if archive else [m for m in modules if m.problem]
    rows = [_row(module, archive) for module in shown]
    rows.sort(key=lambda row: (_ACTIONS.index(row["action"]), not row["module"].startswith("<"), row["module"]))
    totals = dict(Counter(row["action"] for row in rows))
    if archive:
        totals |= {"tensor_bytes": archive.tensor_bytes, "archive_bytes": archive.file_bytes}
    meta: Meta = {**finished(run.info), "exported": archive is not None}
    return Report("package", run.name, PACKAGE, rows, meta, totals)


def _row(module: PackagedModule, archive: Archive | None) -> Row:
    size = None
    if archive and module.is_pickle:
        size = archive.sizes[archive.pickles[0]]
    elif archive and module.action in ("intern", "mock"):
        size = archive.source_bytes(module.name)
    action = "blocked" if module.problem else module.action
    values = {"module": module.name, "action": action, "rule": module.problem or module.rule, "size": size}
    return Row(values | {"needed_by": module.needed_by or None, "index": module.index})
