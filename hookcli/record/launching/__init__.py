"""Runs a script of a user's in this process as `python SCRIPT` or `python -m MODULE` would in its own.

    script = find("train.py", module=False)
    ending = script.run(["--epochs", "3"])
    leave(ending)

What can't be as under `python`: the stack goes on below the script's first frame, where `sys._getframe`,
`traceback.print_stack` and `warnings.warn(stacklevel=...)` can look; modules that hookcli has imported are imported
already, so that a file beside the script that bears the name of one is not.
"""

from hookcli.record.launching.ending import Ending, leave
from hookcli.record.launching.finding import find
from hookcli.record.launching.running import Script, restored

__all__ = ["Ending", "Script", "find", "leave", "restored"]
