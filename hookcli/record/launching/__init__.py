"""Runs a user's script in this process as `python SCRIPT` or `python -m MODULE` would in its own.

    script = find("train.py", module=False)
    ending = script.run(["--epochs", "3"])
    leave(ending)

Two things differ from `python`. The stack continues below the script's first frame, where `sys._getframe`,
`traceback.print_stack` and `warnings.warn(stacklevel=...)` can see it. And a file next to the script that has the name
of a module that hookcli has imported already is not imported in its place.
"""

from hookcli.record.launching.ending import Ending, leave
from hookcli.record.launching.finding import find
from hookcli.record.launching.running import Script, restored

__all__ = ["Ending", "Script", "find", "leave", "restored"]
