"""What all tests share: one thread each, a command line in this process, and a witness for side effects."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Tests run side by side, and some start processes: one thread each, set before torch is imported.
THREADS = os.environ.get("HOOKCLI_TEST_THREADS", "1")
os.environ["OMP_NUM_THREADS"] = THREADS
# Inductor's few programs need no pool of processes, and no trial of what the compiler makes for this processor.
os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1"}
# Hundreds of processes import hookcli: one of them compiles it.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# No terminal's width or colour leaks in from outside; pytest-xdist sets a width.
for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(name, None)
# `python3` and `hookcli` of a shell are those of these tests, also where their environment is not activated.
os.environ["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))  # noqa: PTH120
# The last that is done: a worker leaves PyTorch as it is, which takes seconds to take apart; else libraries find no
# leak in what `quiet_machine` has frozen.
atexit.register(os._exit, 0) if "PYTEST_XDIST_WORKER" in os.environ else atexit.register(gc.unfreeze)

import caches
import forks
import limits
import pytest
from hypothesis import HealthCheck, settings

from hookcli.cli import main
from hookcli.commands import COMMANDS, MODULES, app

caches.use_own()


MAKE_COMMAND = app._command


@cache
def command_of(name: str, function: Callable[..., Any]) -> Any:
    """Typer's command for this function: to make one takes as long as a small model's run, and no run changes it."""
    return MAKE_COMMAND(name)


def command_once(name: str) -> Any:
    if name not in COMMANDS:  # a probe of another distribution
        return MAKE_COMMAND(name)
    return command_of(name, getattr(import_module(MODULES[name]), name.replace("-", "_")))


app._command = command_once


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have one server for all of xdist's workers, which imports torch while they do.

    And profiles of Hypothesis by which no test fails because the machine is slow.
    """
    if config.getoption("numprocesses", None):
        forks.address()
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("patient", patient, max_examples=50)
    settings.register_profile("sweep", patient, max_examples=1000)
    settings.load_profile(config.getoption("hypothesis_profile", None) or "patient")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without walks of the garbage collector, which find none among all that is imported and made."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


NO_STACK = SimpleNamespace(format_stack=list)
"""In place of `traceback`, for devices that are not there.

They keep each seed for later, with the stack, and to read the source of pytest's sixty frames takes milliseconds.
"""


@pytest.fixture(autouse=True)
def quiet_machine() -> Iterator[None]:
    """Walks of the garbage collector see the test alone, and it leaves PyTorch's modes to the next as they were.

    They would find a million objects of torch and pytest, again and again.
    """
    import torch

    gc.collect()
    gc.freeze()

    torch.set_num_threads(int(THREADS))
    for device in (torch.cuda, torch.xpu, torch.mtia):
        device.traceback = NO_STACK
    torch.manual_seed(0)  # the same random weights and inputs each time, whichever tests were run before
    yield
    left = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    torch.set_grad_enabled(True)
    assert left == (True, False, False), "the test has left gradients off, or inference mode or autocast on"


@pytest.fixture
def nothing_compiled() -> Iterator[None]:
    """Begin as a new process does, without what earlier tests have compiled, and leave nothing to later ones."""
    import torch._dynamo

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def own_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes on this PyTorch are of this test, and not of the process, whose later reports have them otherwise."""
    from hookcli.tensors import torch_private

    monkeypatch.setattr(torch_private, "_notes", dict(torch_private._notes))


@pytest.fixture
def all_objects() -> None:
    """Unfreeze the objects that were made before the test, so that walks of the garbage collector find them.

    For few tests: the next one collects a million objects before it begins.
    """
    gc.unfreeze()


@pytest.fixture(scope="module")
def uncollected() -> Iterator[None]:
    """Parse the package without walks of the garbage collector, which take twice as long and find nothing."""
    gc.disable()
    yield
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """End a test, with its fixtures, that waits for ever for a process."""
    with limits.limited():
        return (yield)


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    """End the processes that a test leaves behind, as it does when one of its assertions fails."""
    with forks.ended():
        yield


@dataclass
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def rank_pools() -> Iterator[None]:
    """End the processes of ranks after the file, whose tests share them."""
    yield
    import ranks

    ranks.stop_all_ranks()


@pytest.fixture(autouse=True)
def give_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a swept test, glibc gives freed memory back: hundreds of large models would leave it in pieces."""
    yield
    if request.node.get_closest_marker("sweep") and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        gc.collect()
        trim(0)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command line in this process, or `run` in a fork. Ranks that it starts are forks."""
    elastic = "torch.distributed.elastic"
    monkeypatch.setattr(f"{elastic}.multiprocessing.subprocess_handler.subprocess_handler.Popen", forks.Popen)
    monkeypatch.setattr(f"{elastic}.rendezvous.dynamic_rendezvous.get_method_name", forks.method_name)

    def run(*argv: str) -> Ran:
        capfd.readouterr()
        if argv[:1] == ("run",):  # its process becomes the script's
            paths = os.pathsep.join(path for path in sys.path if path)
            command = [sys.executable, "-m", "hookcli", *argv]
            ran = forks.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths})
            return Ran(ran.returncode, ran.stdout, ran.stderr)
        code = main(list(argv))
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return run


NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.fc = nn.Linear(width * 16, 10)

    def forward(self, x):
        return self.fc(self.act(self.conv(x)).flatten(1))

class Needs(nn.Module):
    def __init__(self, hidden, depth=2):
        super().__init__()

class Crashes(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x):
        self.net(x)
        raise KeyError("lost")

def pair():
    return Net(), (torch.ones(2, 3, 4, 4),)

def boom():
    raise ValueError("no such config")

def number():
    return 3

def loss(output):
    return (output ** 2).sum()

ready = Net()
"""


@contextmanager
def own_modules(folder: Path) -> Iterator[None]:
    """Forget the modules that are imported from the folder.

    New ones come last: to look at all of the thousands would take each test a millisecond.
    """
    last = next(reversed(sys.modules))
    yield
    for name in list(takewhile(lambda name: name != last, reversed(sys.modules))):
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def modules_of_the_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test imports files from its folder, never files of the same name that another test wrote."""
    with own_modules(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(autouse=True, scope="module")
def modules_of_the_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nor those that fixtures of another file of tests wrote."""
    with own_modules(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's own `net.py`, as the working directory."""
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=["as nodes are made", "by a search"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the nodes are found that a module makes: by PyTorch's hook (2.14), or below its outputs."""
    from torch.autograd import graph

    if request.param == "by a search":
        monkeypatch.delattr(graph, "node_creation_hook", raising=False)
    elif not hasattr(graph, "node_creation_hook"):
        pytest.skip("PyTorch has this hook since 2.14")
    return str(request.param)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the golden files anew")
