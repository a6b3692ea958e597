"""The whole test suite as on other machines: kernels for other processors, two threads, busy cores, a plain shell.

    scripts/sweep machines                  all of them, one after the other, in this environment
    scripts/sweep machines old busy         these
    scripts/sweep machines old -- tests/checks -x      what stands after `--` goes to pytest

No test may depend on what the processor, its load or its number of cores decides. What pytest printed stays in the
folder of `--logs`. Exits 1 if a test failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Machine:
    """Another machine, as this one can play it: variables of the environment, and busy loops beside the tests."""

    about: str
    variables: Mapping[str, str] = field(default_factory=dict)
    busy_loops: int = 0


_BARE = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if Path(p) != Path(sys.executable).parent)
MACHINES = {
    "old": Machine(
        "kernels without AVX",
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
    ),
    "avx2": Machine(
        "kernels for AVX2", {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
    ),
    "threads": Machine("two threads in each process", {"HOOKCLI_TEST_THREADS": "2"}),
    "busy": Machine("six busy loops beside the tests", busy_loops=6),
    "shell": Machine("an environment that is not activated", {"PATH": _BARE}),
}


@contextmanager
def _busy(loops: int) -> Iterator[None]:
    """Keep the cores busy by this many processes."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def tried(name: str, machine: Machine, logs: Path, pytest: Sequence[str]) -> bool:
    """Run the suite as on this machine, and print one line; returns True if all passed."""
    results, begin = logs / f"machine-{name}.xml", time.perf_counter()
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={results}", *pytest]
    with (
        _busy(machine.busy_loops),
        tempfile.TemporaryDirectory(prefix="inductor-") as compiled,  # not for other kernels
        (logs / f"machine-{name}.txt").open("w") as log,
    ):
        variables = os.environ | {"TORCHINDUCTOR_CACHE_DIR": compiled} | machine.variables
        code = subprocess.run(command, cwd=ROOT, env=variables, stdout=log, stderr=log).returncode
    cases = list(ET.parse(results).iter("testcase")) if results.exists() else []
    skipped = sum(case.find("skipped") is not None for case in cases)
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    counts = f"{len(cases) - skipped - len(failed):,} passed, {len(failed)} failed, {skipped} skipped"
    print(f"{name} ({machine.about}): {counts}, {time.perf_counter() - begin:.0f} s", flush=True)
    for case in failed:
        print(f"  {case.get('classname')}::{case.get('name')}", flush=True)
    return code == 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machines", nargs="*", help=f"{', '.join(MACHINES)} [all]")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()), help="folder of pytest's output")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:split])
    options.logs.mkdir(parents=True, exist_ok=True)
    if unknown := set(options.machines) - set(MACHINES):
        parser.error(f"unknown machine {', '.join(sorted(unknown))}; choose from {', '.join(MACHINES)}")
    passed = [
        tried(name, MACHINES[name], options.logs, arguments[split + 1 :]) for name in options.machines or MACHINES
    ]
    return int(not all(passed))
