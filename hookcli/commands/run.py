"""hookcli run"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from hookcli import registry
from hookcli.commands.destination import check_target
from hookcli.commands.meant_commands import require_own_kind
from hookcli.commands.option_fields import AMBIGUOUS, flag, moved_before, names, option, require_new
from hookcli.commands.run_options import FurtherProbes, PartOptions
from hookcli.errors import UsageError, shortened
from hookcli.hooks.option_values import FURTHER_PROBES, OPS
from hookcli.record.file.ranks.parts import RecordFiles
from hookcli.record.launching.finding import Program, find, mentions, takes_no_arguments, why_unseen
from hookcli.record.launching.launched import Launched, attended, become, is_lost, made_witness
from hookcli.record.observe.recording_plan import (
    PROBES,
    RecordingPlan,
    check_probes,
    given_options,
    judging,
    parse_no_grad,
    parse_steps,
)
from hookcli.registry.capability import capabilities, recorder_options, search_words
from hookcli.system.streams import say
from hookcli.system.torchrun import leftover, world

EXAMPLES = (
    "hookcli run train.py --epochs 3",
    "hookcli run --check train.py",
    "hookcli run --every 10 --output run.jsonl train.py --epochs 3",
    *(one.example for one in recorder_options().values() if one.example),
    "hookcli run --live tensorboard train.py",
    "hookcli run torchrun --nproc-per-node 4 train.py",
)
_OF_PARTS = (one.typed or one.name for one in recorder_options().values() if one.first)
FIRST = " ".join(["module every output check", *_OF_PARTS, "probe match ops live"])
SETTINGS = {"allow_interspersed_args": False}  # options after the script are the script's
_MADE = ("began", "ended")  # of a RecordingPlan, by each process for itself


@dataclass(frozen=True)
class RunOptions(FurtherProbes, PartOptions):
    """Options of `hookcli run`."""

    panel = "Recording"

    module: bool = option(False, "SCRIPT is a module, as for python -m.", "-m", panel=None)
    every: int | None = option(
        None, "Every Nth step [automatic: fewer as the run gets longer].", metavar="N", min=1, max=2**63 - 1
    )
    steps: str | None = option(None, "Record from step A until before B; 0:1000, 500:.", metavar="A:B")
    probe: list[str] = option(list, f"{', '.join(PROBES)}; inputs [all but the last].", metavar="A,B,...")
    match: str | None = option(None, "Only one name, a glob, or a part of names.", metavar="PATTERN")
    check: bool = option(False, "Check losses and recorded steps; exit code 1 for an error.")
    no_grad: str | None = option(
        None, "Forwards without gradients per recorded step of their model [1].", metavar="off|N"
    )
    time: bool = option(False, "Also time modules without their parts, and backward by autograd's nodes.")
    hist: bool = option(False, "Record histograms, too: quantiles, and shares outside float16 and float8.")
    ops: bool = option(False, "Also record operators: each call of a PyTorch function.")
    live: str | None = option(
        None, "Export steps while the script runs: tensorboard, wandb.", metavar="FORMAT[=FOLDER]"
    )
    serve: int | None = option(None, "Serve the page of the run on this machine.", metavar="PORT", min=1, max=65535)
    max_seconds: float | None = option(
        None, "Stop recording after S seconds; the script continues.", metavar="S", min=0, max=1e9
    )
    output: str | None = option(
        None, "The record [SCRIPT.run.jsonl, numbered].", short="-o", metavar="FILE", panel=None
    )
    quiet: bool = option(False, "Print only faults on stderr.", short="-q", panel=None)
    debug: bool = option(False, "Show the full traceback if hookcli itself fails.", panel=None)

    def plan(self) -> RecordingPlan:
        """Return what to record and when. Raises UsageError."""
        start, stop = parse_steps(self.steps)
        of_parts = {name: getattr(self, one.typed or name) for name, one in recorder_options().items()}
        for name, value in of_parts.items():
            if recorder_options()[name].folder and value is not None:
                check_target(Path(value), flag(name), "folder")
        return RecordingPlan(
            every=self.every,
            start=start,
            stop=stop,
            max_seconds=self.max_seconds,
            probes=check_probes(
                [n.strip() for text in self.probe or [",".join(PROBES)] for n in text.split(",")]
                + [name for name in FURTHER_PROBES if getattr(self, name)]
            ),
            match=self.match,
            check=self.check,
            no_grad=parse_no_grad(self.no_grad),
            hist=self.hist,
            ops=OPS[0] if self.ops else None,
            timed=self.time,
            of_parts=given_options(of_parts),
        )


_ADDED = [(one.typed or one.name, owner) for owner in capabilities() for one in owner.options]
_FLAGS = [(one.name, one) for one in capabilities() if one.flag]
require_new("run", RunOptions, (FurtherProbes, PartOptions), [*_FLAGS, *_ADDED], own=("script", "arguments"))


def run(
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT", help="The script, as for python; or a command that starts one.", show_default=False
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="The script's own arguments.", show_default=False)
    ] = None,
    *,
    own: RunOptions,
) -> int:
    """Record an unmodified script, and find where a NaN begins.

    Starts python with the script, or a command that starts python (torchrun, accelerate launch). Records the loss of
    every step and, in some steps, each module's activations, gradients and updates. Output, results and (except with
    --check or --rule) the exit code are unchanged. See the record with `hookcli show`.
    """
    plan = own.plan()
    if own.live:
        from hookcli.commands.live import check_live

        check_live(own.live)
    if world().size > 1:
        raise UsageError("hookcli run goes before torchrun: hookcli run torchrun ... train.py")
    script_arguments = arguments or []
    require_own_kind("" if own.module else script, "script", script_arguments)
    program = find(script, script_arguments, own.module)
    remarks = [*filter(None, [leftover(), *registry.remarks()])]
    meant, foreign = _misplaced(own, script, script_arguments)
    if foreign:
        remarks.append(f"warning: options meant for hookcli go before the program: {meant}")
        meant = ""
    files = None
    if unseen := why_unseen(program.argv):
        remarks.append(f"warning: {unseen}, through which hookcli is loaded: nothing is recorded")
    else:
        files = _reserved(own, plan, program)
    starts = _beside(own, files, remarks) if files else []
    if not own.quiet:
        for remark in remarks:
            say(remark)
    witness, process, code = "", 0, 0
    if files and (own.check or judging(plan)):
        witness = made_witness()
        process, code = attended(witness, files.release)
    if not process:
        for start in starts:
            start()
        _become(program, files, own, plan, [script, *script_arguments], meant, witness)
    code = _exit_code(code, files, process, own, is_lost(witness))
    registry.remarks()  # on checks that failed: the program has said them, beside its summary
    return code


def _misplaced(own: RunOptions, script: str, script_arguments: Sequence[str]) -> tuple[str, bool]:
    """The command line that was meant if options of hookcli stand after the script, else ""; True if they can't be the
    script's.
    """
    kept = () if takes_no_arguments(script) else AMBIGUOUS
    meant = moved_before(own, [script, *script_arguments], kept)
    options = {*names(own)}.difference(kept)
    return meant, bool(meant) and not mentions(script, script_arguments, options, spelled=AMBIGUOUS)


def _exit_code(code: int, files: RecordFiles | None, process: int, own: RunOptions, lost: bool) -> int:
    """The exit code: the program's own, else 1 for a fault in the record, else 2 if a part was not judged or `lost`."""
    failed, reason = _failure(files, process, own.check, lost) if files and not code else (code, "")
    if reason:
        say(f"exit code {failed}: {reason}")  # the summary may be another rank's
    return failed


def _failure(files: RecordFiles, process: int, checked: bool, lost: bool) -> tuple[int, str]:
    """The exit code and its reason of a run that ended with 0: a fault, with the record's name if it is not the first.

    In brief if the summary, which is of the only process, began with it.
    """
    from hookcli.record.file.latest import records_of_run
    from hookcli.record.file.views.outcome import fault

    records = list(records_of_run(files, process))
    faults = ((path, fault(record, checked, brief=path == files.record and path.is_file())) for path, record in records)
    path, problem = next(((path, problem) for path, problem in faults if problem), (files.record, ""))
    if problem:
        return 1, problem if path == files.record else f"{path.name}: {problem}"
    if lost:
        return 2, "not all could be recorded, and the rest was not judged (a warning above says why)"
    # A child may be ended by its parent, which has no need of it any more.
    unended = [path for path, record in records if not (record.end or path.name.startswith("child-"))]
    if unended and checked:
        name = unended[0].name if unended[0].is_file() else files.folder.name
        return 2, f"{name} has no end, as after os._exit: not all was judged"
    return 0, ""


def _reserved(own: RunOptions, plan: RecordingPlan, program: Program) -> RecordFiles | None:
    """Reserve the record of a script; of a command, which may run no Python to delete it, only look for a free name.

    With --live the process that exports the record deletes it in the end, and no other run may take the name before. A
    folder that is full or gone is no reason not to run, unless the user has named it, or asks for what a record tells.
    """
    try:
        files = RecordFiles.named(own.output) if own.output else RecordFiles.reserve(Path.cwd(), program.stem)
        if program.argv[0] == sys.executable or own.live:
            return files
        return replace(files, reserved=not files.release())
    except OSError as error:
        if own.output:
            raise UsageError(f"can't write {own.output}: {error.strerror} (--output names another file)") from error
        why = f"can't write a record in this folder: {error.strerror}"
        asked = {"--check": own.check, **dict.fromkeys(map(flag, judging(plan)), True)}
        others = {" ".join(search_words()[:1]): plan.searches, "--live": own.live, "--serve": own.serve}
        if needing := [name for name, value in (*asked.items(), *others.items()) if value]:
            raise UsageError(f"{needing[0]}: {why} (--output names a file elsewhere)") from error
        say(f"warning: {why}; the script runs without being recorded")  # also with --quiet
        return None


def _beside(own: RunOptions, files: RecordFiles, remarks: list[str]) -> list[Callable[[], None]]:
    """Functions that start what --live and --serve ask for. Raises UsageError, and leaves no record, if they can't."""
    if not (own.live or own.serve):
        return []
    from hookcli.commands.live import live_export, live_page

    try:
        made = [live_export(own.live, files)] if own.live else []
        made += [live_page(own.serve, files)] if own.serve else []
    except UsageError:
        files.release()
        raise
    remarks += [remark for remark, _ in made]
    return [start for _, start in made]


def _become(
    program: Program,
    files: RecordFiles | None,
    own: RunOptions,
    plan: RecordingPlan,
    typed: Sequence[str],
    meant: str,
    witness: str,
) -> NoReturn:
    """Replace this process by the program. Raises UsageError if it can't be started."""
    environment: dict[str, str] = dict(os.environ)
    if files is not None:
        settings = {item.name: getattr(plan, item.name) for item in fields(plan) if item.name not in _MADE}
        launched = Launched(
            process=os.getpid(),
            record=str(files.record),
            named=bool(own.output),
            name=program.name,
            argv=typed,
            plan=settings,
            module=own.module,
            quiet=own.quiet,
            debug=own.debug,
            meant=meant,
            reserved=files.reserved,
            witness=witness,
        )
        environment = launched.environment()
    try:
        become(program.argv, environment)
    except OSError as error:
        if files is not None:
            files.release()
        raise UsageError(f"can't run {shortened(program.argv[0])!r}: {error.strerror}") from error
