"""The sections of `scripts/bench`. Each takes a number of rounds.

Nothing here may import torch: a child's peak memory begins with what its parent had at the fork, and OpenMP's threads
do not survive one. So _bench_work is imported in children only.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from _bench_measure import HOOKCLI, Sample, apart, compare, console, installed, program, scratch, timed
from _bench_table import BATCH, CACHED, GRADS_OF, KERNELS, OPERATORS_OF, ROUNDING, WEIGHTS, insight_title

_BUILD = "import torch, torchvision; size = (1, 3, 224, 224); build = torchvision.models.{}\n"
_BARE = _BUILD + "with torch.device('meta'): m, x = build().eval(), torch.empty(size)\nwith torch.no_grad(): m(x)"
_STEP = (
    "import torch, torchvision; torch.manual_seed(0)\n"
    "m, x = torchvision.models.{}(), torch.randn(2, 3, 224, 224)\n"
    "torch.nn.functional.cross_entropy(m(x), torch.zeros(2).long()).backward()"
)
_TORCHINFO = _BUILD + "import torchinfo; torchinfo.summary(build(), input_size=size, verbose=0)"
_TORCHINFO_META = (
    f"{_BUILD}with torch.device('meta'): m = build()\n"
    "import torchinfo; torchinfo.summary(m, input_size=size, device='meta', verbose=0)"
)
_READ = "import sys\nwith open(sys.argv[1], 'rb', 0) as f:\n  b = bytearray(1 << 22)\n  while f.readinto(b): pass"


def start(rounds: int) -> None:
    code = "import typer, rich.table"
    runs = {f"python -c '{code}'": partial(program, sys.executable, "-c", code)}
    ways = {f"hookcli {argument}": partial(program, HOOKCLI, argument) for argument in ("--help", "models")}
    cached = {f"hookcli shapes {name}, cached": partial(program, HOOKCLI, "shapes", name) for name in CACHED}
    compare("Start", rounds, runs | ways | cached, dict.fromkeys(ways, 1.5) | dict.fromkeys(cached, 2.0))


def shapes(rounds: int) -> None:
    for name in ("resnet50", "vit_h_14"):
        runs = {
            "bare script on meta": partial(program, sys.executable, "-c", _BARE.format(name)),
            "hookcli shapes": partial(program, HOOKCLI, "shapes", name, "--no-cache"),
        }
        if installed("torchinfo"):
            codes = {"on CPU": _TORCHINFO, "on meta": _TORCHINFO_META}
            runs |= {
                f"torchinfo.summary {where}": partial(program, sys.executable, "-c", code.format(name))
                for where, code in codes.items()
            }
        compare(f"Shapes of {name}, as a process", rounds, runs, {"hookcli shapes": 1.15}, ("seconds", "peak"))


def activations(rounds: int) -> None:
    for name in ("resnet50", "vit_b_16"):
        apart(partial(_in_process, "Activations", "activations", name, rounds))
    apart(_reductions)


def operators(rounds: int) -> None:
    for name in OPERATORS_OF:
        apart(partial(_in_process, "Operators", "operators", name, rounds))
        if installed("torchlens"):
            apart(partial(_in_process, "TorchLens", "torchlens", name, min(rounds, 5)))


def _in_process(title: str, ways: str, name: str, rounds: int) -> None:
    import _bench_work as work

    runs = {way: partial(timed, action) for way, action in getattr(work, ways)(name).items()}
    hookcli = "hookcli activations"
    targets = {hookcli: 1.25, f"{hookcli} --hist": 1.6, f"{hookcli} --ops": 1.6}
    compare(f"{title}, {name}, batch {BATCH}, eval", rounds, runs, targets)


def _reductions() -> None:
    import _bench_work as work

    rows, distinct, reduced = work.reductions()
    console.print(f"resnet50: {rows} rows of {distinct} distinct outputs, {reduced} tensors reduced\n")


def grads(rounds: int) -> None:
    apart(partial(_grads, rounds))


def _grads(rounds: int) -> None:
    import _bench_work as work

    actions, clear = work.grads(GRADS_OF)
    runs = {name: partial(timed, action, clear) for name, action in actions.items()}
    title = f"Forward and backward of resnet50, batch {BATCH}, train"
    compare(title, rounds, runs, {"hookcli grads --of parameters": 1.15})


def graph(rounds: int) -> None:
    apart(partial(_graph, rounds))


def _graph(rounds: int) -> None:
    import _bench_work as work

    work.keep_freed_memory()
    actions, forward = work.graph()
    targets = {way: 1.05 for way in actions if way.startswith("C++")}
    title = f"{{}} of resnet50, batch {BATCH}, train, under hooks on every autograd node"
    runs = {way: partial(timed, action, forward) for way, action in actions.items()}
    compare(title.format("Backward"), rounds, runs, targets)
    steps = {way: partial(timed, partial(_both, forward, action)) for way, action in actions.items()}
    compare(title.format("Forward and backward"), rounds, steps, targets)


def _both(first: Callable[[], object], second: Callable[[], object]) -> None:
    first()
    second()


def insight(rounds: int) -> None:
    """Probes that look into transformers."""
    for kernel in KERNELS:
        apart(partial(_insight, kernel, rounds))
    apart(partial(_rounding, rounds))


def _insight(kernel: str, rounds: int) -> None:
    import _bench_work as work

    runs = {way: partial(timed, action) for way, action in work.insight(kernel).items()}
    compare(insight_title(kernel), rounds, runs, {"hookcli attention": 1.5})


def _rounding(rounds: int) -> None:
    import _bench_work as work

    compare(ROUNDING, rounds, {way: partial(timed, action) for way, action in work.rounding().items()}, {})


def check(rounds: int) -> None:
    def run(*argv: str) -> Callable[[], Sample]:
        return partial(program, HOOKCLI, "check", "--quiet", *argv)

    runs = {
        "bare script, forward and backward": partial(program, sys.executable, "-c", _STEP.format("resnet50")),
        "hookcli check": run("resnet50"),
        "hookcli check --meta": run("resnet50", "--meta"),
    }
    compare("Check of resnet50, as a process", rounds, runs, {"hookcli check": 1.3}, ("seconds", "peak"))
    names = ("resnet18", "squeezenet1_1", "mobilenet_v3_small")
    several = {"one process each": partial(_in_turn, [run(name) for name in names]), "one for all": run(*names)}
    compare(f"Check of {', '.join(names)}", rounds, several)


def _in_turn(runs: Sequence[Callable[[], Sample]]) -> Sample:
    return Sample(sum(run().seconds for run in runs))


def diff(rounds: int) -> None:
    apart(partial(_diff, rounds))


def _diff(rounds: int) -> None:
    from _bench_diff import side_by_side

    runs = {way: partial(timed, action) for way, action in side_by_side("resnet50").items()}
    compare(f"Two resnet50 side by side, batch {BATCH}, eval", rounds, runs, {"hookcli diff": 1.7})


def memory(rounds: int) -> None:
    def run(*arguments: str) -> Callable[[], Sample]:
        # glibc keeps freed blocks, as many as chance has it: the plain run's peak varies by 14 %. Told to hand back any
        # of 64 KiB or more, it varies by 1 MiB, and what a probe holds shows.
        script = str(Path(__file__).with_name("_bench_work.py"))
        return partial(program, "env", "MALLOC_MMAP_THRESHOLD_=65536", sys.executable, script, *arguments)

    title = "Peak memory on resnet50, two runs in a process,"
    runs = {"plain": run("forward"), "hookcli activations": run("forward", "activations")}
    compare(f"{title} eval", rounds, runs, {"hookcli activations": 1.05}, ("peak",))
    runs = {"plain": run("backward")} | {
        f"hookcli grads --of {of}": run("backward", "grads", f"of={of}") for of in GRADS_OF
    }
    compare(f"{title} train", rounds, runs, {"hookcli grads --of parameters": 1.05}, ("peak",))


def weights(rounds: int) -> None:
    file = sparse_file(Path(scratch.name), 10 << 30)
    runs = {
        "read, block by block": partial(program, sys.executable, "-c", _READ, str(file)),
        "hookcli weights": partial(program, HOOKCLI, "weights", str(file)),
        "hookcli weights --no-stats": partial(program, HOOKCLI, "weights", str(file), "--no-stats"),
    }
    compare(WEIGHTS, rounds, runs, measured=("seconds", "peak"))


def sparse_file(folder: Path, nbytes: int) -> Path:
    """A safetensors file of bfloat16 matrices of zeros, of this size at most, which takes no room on the disk."""
    file, count = folder / "sparse.safetensors", nbytes >> 27
    offsets = ([i << 27, (i + 1) << 27] for i in range(count))
    named = {
        f"layers.{i}.weight": {"dtype": "BF16", "shape": [1 << 13] * 2, "data_offsets": o}
        for i, o in enumerate(offsets)
    }
    text = json.dumps(named).encode()
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + (count << 27))
    return file


def ranks(rounds: int) -> None:
    """Seconds, not ratios: what comes on top of a run in several processes."""
    console.print("Reports of ranks become one (gloo)")
    for processes in (2, 4):
        launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
        script = str(Path(__file__).with_name("_bench_ranks.py"))
        command = [sys.executable, *launcher, script, str(rounds), "1000", "10000"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if ran.returncode:
            raise RuntimeError(ran.stderr[:2000])
        for line in ran.stdout.splitlines():
            said = json.loads(line)
            size = f"{said['rows']:,} rows of {processes} processes, {said['bytes'] / 1000:,.0f} KB a rank"
            console.print(f"  {size}: gathered in {said['gather']:.3f} s, merged in {said['merge']:.3f} s")
    many = [sys.executable, str(Path(__file__).with_name("_bench_merge.py")), "1000", "1000"]
    said = [json.loads(subprocess.run(many, capture_output=True, check=True).stdout) for _ in range(min(rounds, 5))]
    took, peak = (median(one[what] for one in said) for what in ("seconds", "peak"))
    judged = "met" if took <= 2 and peak <= 500 else "over"
    console.print(
        f"  1,000 rows of 1,000 processes: read and merged in {took:.2f} s, peak {peak:,.0f} MiB (2 s, 500: {judged})"
    )


def page(rounds: int) -> None:
    """Milliseconds in a browser, from a click or a key to the frame that shows its effect."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None or not installed("playwright"):
        console.print(f"page: needs Playwright and one of {', '.join(names)}: left out\n", markup=False)
        return
    script = str(Path(__file__).with_name("_bench_page.py"))
    ran = subprocess.run([sys.executable, script, str(rounds), browser], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(ran.stderr[-2000:])
    said = json.loads(ran.stdout)
    console.print(f"A page of {said.pop('rows'):,} rows, {said.pop('bytes') / 1e6:.2f} MB, in {Path(browser).name}")
    for what, target in (("opened", 1000), ("sorted", 100), ("searched", 100)):
        judged = "met" if said[what] <= target else "over"
        console.print(f"  {what} in {said[what]:.0f} ms ({target:,}: {judged})")
    console.print("")
