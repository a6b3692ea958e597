"""Starts this command line again in N processes, with torchrun's own elastic launcher."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from typing import Any
from unittest.mock import patch

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from hookcli.errors import FAILED, INTERRUPTED, HookcliError
from hookcli.system import interrupts
from hookcli.system.streams import clear_status_of_others
from hookcli.system.torchrun import LAUNCHER

_SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"
_GIVES_WAY = 5  # seconds for a process to end by itself after another has failed


def launch(arguments: Sequence[str], processes: int, *, debug: bool = False) -> int:
    """Run `hookcli ARGUMENTS` as ranks here; return the exit code. Raises HookcliError for a rank that just died."""
    # The time that the others have after a failure; in torch 2.11 it is always 30 s.
    has_timeout = "shutdown_timeout" in {field.name for field in fields(LaunchConfig)}
    patience: dict[str, Any] = {"shutdown_timeout": _GIVES_WAY} if has_timeout else {}
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"hookcli-{uuid.uuid4().hex}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # any free port
        local_addr="localhost",
        max_restarts=0,
        **patience,
    )
    # The processes share the cores, unless that is set. The launcher, which they name, handles all but SIGINT.
    cores = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // processes))
    variables = {"OMP_NUM_THREADS": cores, LAUNCHER: str(os.getpid()), _SIGNALS: "SIGTERM,SIGHUP,SIGQUIT"}
    with patch.dict(os.environ, variables), ExitStack() as stack:
        stack.callback(logging.disable, logging.root.manager.disable)
        if not debug:  # the failing rank has reported its failure already
            logging.disable(logging.CRITICAL)
        try:
            with interrupts.raising(partial(SignalException, "interrupted", signal.SIGINT)):
                elastic_launch(config, sys.executable)("-m", "hookcli", *arguments)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if failure.exitcode in (FAILED, INTERRUPTED):  # it has reported why
                return int(failure.exitcode)
            if failure.exitcode >= 0:
                raise HookcliError(f"rank {rank} exited with code {failure.exitcode} and no error message") from error
            name = signal.Signals(-failure.exitcode).name
            often = " (often: out of memory)" if name == "SIGKILL" else ""
            raise HookcliError(f"rank {rank} died: {name}{often}") from error
        except SignalException as error:
            return 128 + int(error.sigval)
        finally:
            clear_status_of_others()  # of a rank that was ended
    return 0
