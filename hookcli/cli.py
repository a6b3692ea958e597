"""The command line: the Typer app, and `main`, where alone errors become messages and exit codes."""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

import typer

from hookcli import registry
from hookcli.commands import COMMANDS
from hookcli.commands.app import build_app
from hookcli.errors import (
    FAILED,
    INTERRUPTED,
    BugError,
    HookcliError,
    PluginError,
    ProcessesWanted,
    ToldError,
    UsageError,
    in_brief,
)
from hookcli.registry.capability import capabilities, require_no_two
from hookcli.system import interrupts
from hookcli.system.escaping import visible_lines
from hookcli.system.files import relative
from hookcli.system.stdout import leave_stdout, own_process, write_report
from hookcli.system.streams import aside, say, share_terminal
from hookcli.system.torchrun import LAUNCHER, end_with_launcher, world

_MOMENT = 10.0  # seconds
_WRITING = [one.name for one in capabilities() if one.writes]
_BY_RANK_0 = (
    *("check", "explain", "report", "diff", "hooks", "show", "models", "plugins", "schema", "skill"),
    *(one.name for one in capabilities() if one.on_one_rank),
    *("--help", "-h", "--version"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0 no error, 1 a check or comparison failed, 2 it could not run.

    `hookcli run` does not return, but for --check: the process becomes the script's.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
    except BaseException as error:
        if not interrupts.came(error):
            raise
        code = INTERRUPTED
    finally:
        for remark, trace in registry.remarks().items():  # on plugins
            if "--debug" in arguments and world().writes:
                aside(visible_lines(trace))
            if not {"-q", "--quiet"} & set(arguments) and world().writes:
                say(remark)
    if code != INTERRUPTED and not interrupts.came():
        return code
    if LAUNCHER not in os.environ and world().writes:  # else the launcher, or the first rank, says it
        say("interrupted")
    return INTERRUPTED


def _run(arguments: list[str]) -> int:
    if not world().writes and (not arguments or arguments[0] in _BY_RANK_0):  # of the processes that torchrun starts
        return 0
    try:
        require_no_two()
        completion: AbstractContextManager[None] = nullcontext()
        if os.environ.get("_HOOKCLI_COMPLETE") == "complete_bash":
            if "COMP_WORDS" not in os.environ or not os.environ.get("COMP_CWORD", "").isdecimal():
                raise UsageError(
                    "_HOOKCLI_COMPLETE is set without COMP_WORDS and COMP_CWORD: unset it "
                    "(the shell's completion sets all three)"
                )
            from hookcli.commands.completion import words_joined

            completion = words_joined()
        with completion:
            return int(build_app()(args=arguments, prog_name="hookcli", standalone_mode=False) or 0)
    except BaseException as error:
        if interrupts.came(error) or isinstance(error, SystemExit):
            raise
        if not isinstance(error, ProcessesWanted):
            return _failed(error, arguments)
        wanted = error
    from hookcli.engine.ranks.launch import launch

    try:
        return launch(arguments, wanted.processes, debug=wanted.debug)
    except HookcliError as error:
        if interrupts.came():
            raise
        return _report_error(error, arguments)


def _failed(error: BaseException, arguments: Sequence[str]) -> int:
    if isinstance(error, typer.TyperException) and type(error).__name__ == "NoArgsIsHelpError":
        from hookcli.commands.help_pages import first_page

        try:
            write_report(f"{first_page()}\n")
        except HookcliError as unwritten:
            return _report_error(unwritten, arguments)
        return 0
    if isinstance(error, typer.TyperException):
        from hookcli.commands.mistakes import mistake

        _leave_it_to_the_first()
        message = mistake(error, [*COMMANDS, *registry.names("probes")])
        say(f"error: {message}")
        _document(UsageError(message), arguments)
        return int(error.exit_code)
    if problem := error if isinstance(error, HookcliError) else not_ours(error, arguments):
        return _report_error(problem, arguments)
    # Ours: shown whole, and not taken for exit code 1, which means that a check or comparison failed.
    aside(visible_lines("".join(traceback.format_exception(error))))
    say("this is a bug in hookcli, please report it")
    _document(BugError(in_brief(error)), arguments)
    return 2


def not_ours(error: BaseException, arguments: Sequence[str]) -> HookcliError | None:
    """The error in words for a person, with itself as the cause, which --debug shows; None for a bug in hookcli."""
    problem: HookcliError | None = None
    if isinstance(error, (ImportError, OSError)) and sys.modules.get("torch") is None:
        # torch itself fails to be imported where it isn't installed, or where one of its libraries does not load.
        running = {frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)}
        if "torch" in running or getattr(error, "name", None) == "torch":
            problem = UsageError(f"torch can't be imported: {in_brief(error).partition(': ')[2]}")
    for one in capabilities():
        if one.command and one.distribution != "hookcli" and [one.name] == [*arguments[:1]]:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{relative(place.filename)}:{place.lineno}"
            problem = problem or PluginError(f"{one}: its command failed: {in_brief(error)} at {where}")
    if problem:
        problem.__cause__ = error
    return problem


def _report_error(error: HookcliError, arguments: Sequence[str]) -> int:
    """Write one or two lines to stderr; of several processes, only one does."""
    if isinstance(error, ToldError):
        return error.exit_code
    if not error.own:
        _leave_it_to_the_first()
    if world().size > 1:
        share_terminal()
    if "--debug" in arguments:
        aside(visible_lines("".join(traceback.format_exception(error))))
    if not error.shown:
        say(f"error: {error}")
    _document(error, arguments)
    return error.exit_code


def _document(error: HookcliError, arguments: Sequence[str]) -> None:
    """Write the error as JSON to stdout if the report would have been that, and no report was written with it."""
    *_, last = "", *re.findall(r"(?:^| )(?:--format[ =]|-q?f ?)(\S*)", " ".join(arguments))
    if error.documented or last != "json" or arguments[0] == "run":  # whose stdout is the script's
        return
    if arguments[0] not in _WRITING and any(re.match("-q?o|--output", word) for word in arguments):
        return  # the report goes to a file
    from hookcli.table import document
    from hookcli.table.strict_json import document_text

    if world().writes:
        with suppress(HookcliError):  # stdout is closed or full
            write_report(document_text(document([], error.to_dict())))


def _leave_it_to_the_first() -> None:
    """Wait for the first of several processes, which all find the same mistake, to report it and to end the run.

    If another process ended before, torchrun would end all of them before the message is written.
    """
    if not world().writes:
        time.sleep(_MOMENT)
        raise SystemExit(FAILED)


def begin() -> Callable[[], object]:
    """Run the command line of this process. Returns the function that ends the process accordingly."""
    arguments = sys.argv[1:]
    if next((word for word in arguments if not word.startswith("-")), None) == "run":  # which becomes the script
        return partial(sys.exit, main())
    own_process()
    if world().size == 1:
        code = main()
        interrupts.over(code)
        leave_stdout()
        exec("")  # or Python would end by the signal of an interrupt that has been told (see `_keep_signal`)
        return partial(sys.exit, code)
    end_with_launcher()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # each rank would repeat each warning of C++
    code = main()
    interrupts.over(code)
    leave_stdout()
    return partial(os._exit, code)  # a group that broke can hang or abort in what C++ does at the end of a process
