"""Commands and models that use the streams."""

from __future__ import annotations

NET = """
import ctypes, os, sys, time
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        time.sleep(0.03)  # the spinner is there by now
        print("said by print")
        print("said by stderr", file=sys.stderr) if sys.stderr else None
        sys.__stdout__ and sys.__stdout__.write("said to the stream before\\n")
        os.system("echo said by a child 2>&-")
        ctypes.CDLL(None).printf(b"said by C\\n")
        try:
            os.write(1, b"said by os.write\\n")
        except OSError:
            pass
        return self.fc(x)

class Ailing(Net):
    def forward(self, x):
        return super().forward(x) * float("nan")

def closes():
    os.close(1)
    return nn.Linear(4, 3)

def replaces():
    sys.stdout = sys.stderr = open(os.devnull, "w")
    return nn.Linear(4, 3)

def leaves():
    import atexit
    atexit.register(print, "said at exit")
    return Net()
"""


RUNS = ("net.py:Net", "-i", "2x4", "-f", "json")


COMMANDS: dict[str, tuple[str, ...]] = {
    **{name: (name, *RUNS) for name in ("shapes", "inputs", "activations", "grads", "graph", "trace", "check")},
    "ailing": ("check", "net.py:Ailing", *RUNS[1:]),
    "diff": ("diff", "net.py:Net", *RUNS),
    "hooks": ("hooks", "net.py:Net", "-f", "json"),
    "package": ("package", "net.py:Net", "--extern", "**", "-f", "json"),
    "show": ("show", "saved.json", "-f", "json"),
    "models": ("models", "resnet", "-f", "json"),
    "plugins": ("plugins", "-f", "json"),
    "explain": ("explain", "HK012"),
}
