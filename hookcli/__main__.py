"""`python -m hookcli`, `torchrun -m hookcli`, and the console script."""

from __future__ import annotations

import os
import signal


def entry() -> None:
    """Run the command line of this process and end the process.

    From here on Ctrl-C ends it with one line, also while the command line is still being imported. An earlier Ctrl-C
    shows Python's traceback, so this file imports nothing that takes time.
    """
    try:
        os.environ.pop("HOOKCLI_RUN", None)  # hookcli does not record itself
        # At once: an import that is cut short can turn the exception into another, or lose it.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background ignores them
            signal.signal(signal.SIGINT, _interrupted)
        from hookcli.cli import begin

        if signal.getsignal(signal.SIGINT) is _interrupted:
            from hookcli.system.interrupts import heed

            heed()
        end = begin()
    except KeyboardInterrupt:
        _interrupted()
    end()


def _interrupted(*_: object) -> None:
    """End with the exit code of an interrupt. A rank says nothing: its launcher does."""
    try:
        if "HOOKCLI_LAUNCHER" not in os.environ:
            os.write(2, b"hookcli: interrupted\n")
    finally:
        os._exit(130)


if __name__ == "__main__":
    entry()
