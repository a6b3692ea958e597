"""Every mistake gets one clear line on stderr and exit 2, with what was measured before it on stdout."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import numpy as np
import pytest
import torch
from support import require_clear_error, swept

from hookcli.cli import main
from hookcli.commands.app import COMMANDS, _LazyCommands

Cli = Callable[..., Any]

NET = "net.py:Net --input 2x3x4x4"
MISTAKES = {
    "shapes resnet5": "unknown model 'resnet5'; did you mean resnet50",
    "shapes net.py": "'net.py' is a Python file: name the model in it: net.py:Net",
    "shapes nett.py": "did you mean net.py or",
    "shapes nett.py:Net": "no file 'nett.py'; did you mean net.py or",
    "check train.py": "Python file: record the script with `hookcli run train.py`, or check it with `hookcli run --c",
    "train.py --lr 3": "unknown command 'train.py'; did you mean `hookcli run train.py --lr 3`?",
    "trian.py --lr 3": "unknown command 'trian.py'; did you mean `hookcli run train.py --lr 3`?",
    "trian.run.jsonl": "unknown command 'trian.run.jsonl'; did you mean `hookcli show train.run.jsonl`?",
    "zzz.py": "unknown command 'zzz.py'; `hookcli --help` lists all",
    "w.gguf": "unknown command 'w.gguf'; did you mean `hookcli weights w.gguf`?",
    "net.py": "unknown command 'net.py'; did you mean `hookcli shapes net.py:Net`?",
    "net.py:Net": "unknown command 'net.py:Net'; did you mean `hookcli shapes net.py:Net`?",
    "resnet50": "unknown command 'resnet50'; did you mean `hookcli shapes resnet50`?",
    "train.run.jsonl": "unknown command 'train.run.jsonl'; did you mean `hookcli show train.run.jsonl`?",
    "resnt50 -b 2": "unknown command 'resnt50'; did you mean `hookcli shapes resnet50 -b 2`?",
    "shpaes": "unknown command 'shpaes'; did you mean shapes?",
    "summary resnet50": "unknown command 'summary'; did you mean `hookcli shapes resnet50`?",
    "Info": "unknown command 'Info'; did you mean `hookcli shapes`?",
    "info w.gguf": "unknown command 'info'; did you mean `hookcli weights w.gguf`?",
    "params net.py": "unknown command 'params'; did you mean `hookcli shapes net.py:Net`?",
    "flops net.py:Net": "unknown command 'flops'; did you mean `hookcli shapes net.py:Net`?",
    "profile resnet50 -b 2": "unknown command 'profile'; did you mean `hookcli shapes resnet50 -b 2 --time`?",
    "compare a b": "unknown command 'compare'; did you mean `hookcli diff a b`?",
    "train train.py --lr 3": "unknown command 'train'; did you mean `hookcli run train.py --lr 3`?",
    "draw net.py:Net": "unknown command 'draw'; did you mean `hookcli flow net.py:Net`?",
    "nan train.py": "unknown command 'nan'; did you mean `hookcli run --first-bad stop train.py`?",
    "nan resnet50": "unknown command 'nan'; did you mean `hookcli check resnet50`?",
    "version": "unknown command 'version'; did you mean `hookcli --version`?",
    "help grads": "unknown command 'help'; did you mean `hookcli grads -h`?",
    "act": "unknown command 'act'; did you mean activations?",
    "activations net.py:Net w.gguf": "'w.gguf' is a file of weights, not a model: give the model, and --weights w.gguf",
    "shapes net.py:Net w.gguf": "unexpected argument: 'w.gguf' is a file of weights, not a model: give the model, and",
    "shapes resnet18 --json": "unknown option '--json'; did you mean --format json?",
    "shapes hf:gpt2 --seq-len 512": "unknown option '--seq-len'; did you mean --input Nx512:int64?",
    "grads hf:gpt2 --seq-length=77": "unknown option '--seq-length'; did you mean --input Nx77:int64?",
    "shapes hf:gpt2 --seq-len": "unknown option '--seq-len'; did you mean --input NxLENGTH:int64?",
    "shapes resnet18 --batch 8": "unknown option '--batch'; did you mean --batch-size?",
    "grads resnet18 --layer fc": "unknown option '--layer'; did you mean --match?",
    "shapes resnet18 --pretrained": "unknown option '--pretrained'; did you mean --weights DEFAULT?",
    "check train.run.jsonl": "is a record, not a model; `hookcli show train.run.jsonl` shows it",
    "check mymodel": "'mymodel' is a folder of Transformers; did you mean hf:mymodel?",
    "shapes mymodel/config.json": "is the configuration of a folder of Transformers; did you mean hf:mymodel?",
    "check factory.py": "in it: factory.py:build_net or factory.py:Net or factory.py:variant",
    "check net.py:Net --strict": "check has no --strict; with --fail-on warning, warnings exit with 1",
    "shapes hf:mymodle": "hf:mymodle: no such folder; did you mean hf:mymodel?",
    "models gpt2": "torchvision has no model 'gpt2'; `hookcli models gpt2 --source hf` lists 1",
    "models zzzz": "unknown model 'zzzz'; no name contains it",
    "weights empty.pt": "empty.pt is empty (0 bytes)",
    "weights junk.pt": "junk.pt: was not written by torch.save, or is damaged",
    f"shapes {NET} --match {'z' * 5000}": f"no module or parameter matches '{'z' * 250}… (5,000 characters)'",
    f"shapes {'z' * 5000}": f"unknown model '{'z' * 80}… (5,000 characters)'",
    f"shapes {NET} --format {'z' * 5000}": f"unknown --format '{'z' * 80}… (5,000 characters)'",
    "shapes net.py:Nett": "net.py: unknown name 'Nett'",
    "shapes nope.py:Net": "no file 'nope.py'",
    "shapes notes.txt:Net": "'notes.txt' is not a Python file",
    "shapes syntax.py:f": "syntax.py is not valid Python: line 1",
    "shapes binary.py:f": "binary.py is not",
    "shapes fails.py:f": "importing fails.py failed: ZeroDivisionError: division by zero at fails.py:1",
    "shapes no.such.module:f": "no module 'no.such.module'",
    "shapes os:path": "os:path is module: name a class or function that makes a model",
    "shapes net.py:Needs --arg depth=3": "net.py:Needs needs an argument: give --arg hidden=...",
    "shapes net.py:Net --arg wdth=3": "unknown argument of net.py:Net 'wdth'; did you mean width?",
    "shapes 'net.py:Net(8, hidden=[1])'": "'net.py:Net(8, hidden=[1])' is a call: write net.py:Net --arg width=8 --arg "
    "'hidden=[1]'",
    "shapes 'net.py:Nett(8)'": "net.py: unknown name 'Nett'",
    "shapes net.py:ready --arg width=3": "is a module, not a function: remove --arg",
    "shapes net.py:number -i 1": "net.py:number returned int, not an nn.Module",
    "shapes net.py:boom -i 1": "building net.py:boom failed: ValueError: no such config",
    "shapes net.py:Net": "net.py:Net: input shape needed, for example --input 1x3x224x224",
    "shapes --arg width": "--arg 'width': give key=value",
    "shapes --input 3x": "--input '3x': give sizes as in 1x3x224x224",
    "shapes --input axb": "--input 'axb'",
    "shapes --input 1x3:float23": "unknown dtype 'float23'; did you mean float32",
    f"shapes {NET} --dtype fp16": "unknown dtype 'fp16'; did you mean float16?",
    f"shapes {NET} --dtype half": "unknown dtype 'half'; did you mean float16?",
    f"shapes {NET} --dtype BF16": "unknown dtype 'BF16'; did you mean bfloat16?",
    "shapes net.py:Net --input 1x3:long": "unknown dtype 'long'; did you mean int64?",
    "shapes net.py::Net": "'net.py::Net': one colon is enough; did you mean net.py:Net?",
    "shapes Net": "unknown model 'Net'; did you mean factory.py:Net or net.py:Net?",
    "shapes torch.nn.Linear": "unknown model 'torch.nn.Linear'; did you mean torch.nn:Linear?",
    "shapes net.Net": "unknown model 'net.Net'; did you mean net.py:Net?",
    "explain dead": "unknown check 'dead'; did you mean dead-units",
    "explain dying": "unknown check 'dying'; did you mean dead-units",
    "explain page": "lists them; `hookcli report`: Write a page about a model",
    "shapes --fill one": "unknown --fill 'one'; did you mean ones",
    "shapes --dtype float23": "unknown dtype 'float23'; did you mean float32",
    "shapes --dtype int64": "give a floating-point dtype",
    "shapes ResNet50": "unknown model 'ResNet50'; did you mean resnet50?",
    "shapes --largest": "unknown option '--largest'; did you mean --sort -COLUMN?",
    "explain HK999": "unknown check 'HK999'; ",
    "shapes --device gpu": "--device gpu: a GPU is cuda; available: cpu",
    "shapes --device warp": "--device warp: not available; available: cpu",
    "activations --device meta": "--device meta: no values",
    "shapes --depth deep": "--depth 'deep': give a number from 1, or all",
    f"shapes {NET} --match zz*": "no module or parameter matches 'zz*'",
    f"shapes {NET} --type Conv2": "unknown --type 'Conv2'; did you mean Conv2d?",
    f"shapes {NET} --columns fqn,mac": "--columns: unknown column 'mac'; did you mean macs or MACs %?",
    f"shapes {NET} --sort -mac": "--sort: unknown column 'mac'",
    f"shapes {NET} --format jsn": "unknown --format 'jsn'; did you mean json?",
    f"shapes {NET} --output x.jsn": "unknown suffix '.jsn'; did you mean .json",
    f"shapes {NET} --output no/such/x.json": "--output no/such/x.json: can't write to no/such/",
    f"shapes {NET} --output /proc/x.json": "can't write to /proc/",
    f"shapes {NET} --output .": "is a folder",
    f"shapes {NET} --weights no.pt": "--weights: no file 'no.pt'",
    f"shapes {NET} --weights junk.pt": "--weights junk.pt: was not written by torch.save",
    f"shapes {NET} --weights junk.safetensors": "--weights junk.safetensors: not a safetensors file",
    f"shapes {NET} --weights whole.pt": "--weights whole.pt is a whole model (Linear) that torch.save pickled,",
    "shapes whole.pt": "'whole.pt' is a whole model (Linear) that torch.save pickled, which could run code: if you "
    "trust its origin, write a function that returns torch.load('whole.pt', weights_only=False), and give file.py:fun",
    f"shapes {NET} --weights number.pt": "--weights number.pt: holds an object of type int, not a state dict",
    f"shapes {NET} --weights DEFAULT": "this model has no published weights",
    "shapes resnet18 --weights IMAGENET1K_V3": "did you mean IMAGENET1K_V1",
    "activations resnet18 --weights DEFAULT": "hookcli does not download",
    f"grads {NET} --of weights": "unknown --of 'weights'",
    f"grads {NET} --loss crossentropy": "unknown loss 'crossentropy'; did you mean cross-entropy? "
    "(choose from: sum, mean, cross-entropy), or your own",
    f"grads {NET} --loss net.py:los": "net.py: unknown name 'los'; did you mean loss?",
    f"grads {NET} --backward-vector one": "unknown --backward-vector 'one'; did you mean ones?",
    f"grads {NET} --loss sum --backward-vector ones": "give one of them",
    "grads quantized_resnet18 --arg quantize=true": "no gradients",
    "activations net.py:Net --input 9000000x3x1024x1024": "out of memory",
    "shapes --no-such-option": "unknown option '--no-such-option'",
    "shapes a b": "unexpected argument 'b'; usage: hookcli shapes [OPTIONS] [MODEL]",
    "shapes net.py:Net --input 8 1 28 28": "--input 8 1 28 28: join the sizes by x: --input 8x1x28x28",
    "check net.py:Net -i 8 1 28": "unknown model '1'; are these sizes of an input? Join them by x, as in --inpu",
    "shapes 1": "unknown model '1'; are these sizes of an input? Join them by x, as in --input 8x3x32x32",
    "run train.run.jsonl": "'train.run.jsonl' is a record, not a script; did you mean `hookcli show train.run.jsonl`?",
    "run w.gguf": "'w.gguf' is a file of weights, not a script; did you mean `hookcli weights w.gguf`?",
    "run resnet50 -b 2": "'resnet50' is a model, not a script; did you mean `hookcli shapes resnet50 -b 2`?",
    "run net.py:Net": "'net.py:Net' is a model, not a script; did you mean `hookcli shapes net.py:Net`?",
    "show net.py:Net": "'net.py:Net' is a model, not a record; did you mean `hookcli shapes net.py:Net`?",
    "show a.json w.gguf": "'w.gguf' is a file of weights, not a record; did you mean `hookcli weights w.gguf`?",
    "shape": "unknown command 'shape'; did you mean shapes",
    f"grads {NET} --loss net.py:Net": "the loss Net failed on the model's output: RuntimeError: ",
    "shapes torch.nn:Linea -i 2x4": "torch.nn: unknown name 'Linea'; did you mean Linear",
    "shapes --bath 3": "unknown option '--bath'; did you mean ",
    "grads --colums l2": "unknown option '--colums'; did you mean --columns?",
    "shapes -z": "unknown option '-z'; `hookcli shapes --help all` lists all",
    "shapes --help=all": "--help=all: takes no value; give --help all",
    "--hlp": "unknown option '--hlp'; did you mean --help?",
    "shaps resnet18": "unknown command 'shaps'; did you mean shapes?",
    f"check {NET} --against=": "--against: a value is missing; give --against FILE",
    f"activations {NET} --dump ''": "--dump: a value is missing; give --dump DIR",
    f"grads {NET} --loss=": "--loss: a value is missing; give --loss NAME",
    f"shapes {NET} --dtype=": "--dtype: a value is missing; give --dtype DTYPE",
    "shapes net.py:Net --data ''": "--data: a value is missing; give --data MODULE:NAME",
    f"check {NET} --select=": "--select: a value is missing; give --select ID,...",
    "noise-scale train.py": "name its model and its data, as in `hookcli noise-scale train.py:NAME --data train",
    "shapes --batch-size": "--batch-size: a value is missing; give --batch-size N",
    "shapes --batch-size x": "--batch-size 'x': give a whole number",
    "shapes --batch-size 0": "--batch-size '0': give a number from 1",
    f"shapes --seed {2**70}": f"--seed '{2**70}': give a number up to {2**63 - 1}",
    f"grads --passes {10**20}": f"--passes '{10**20}': give a number up to 1000000",
    "check resnet18 --config /dev/zero": "/dev/zero: can't be read as TOML: a device, not a file",
    "check resnet18 --against /dev/zero": "/dev/zero: can't be read as a baseline of hookcli (a device, not a",
    "diff zero.json zero.json": "zero.json: can't be read as a saved report (a device, not a file)",
    "run /dev/zero": "can't read the script '/dev/zero': a device, not a file",
    f"activations {NET} --dump /no/such/x": "--dump /no/such/x: no folder /no/; make it first",
    "run --first-bad stop --keep-bad /no/such fails.py": "--keep-bad /no/such: no folder /no/; make it first",
    "activations net.py:Net --input-file zz=x.npy": "unknown keyword of forward 'zz'",
    "shapes hf:deep": "hf:deep: num_hidden_layers = 1,000,000,000: give a number up to 262,144",
    "shapes hf:gpt2 --arg n_layer=1000000000": "hf:gpt2: n_layer = 1,000,000,000: give a number up to",
    "shapes hf:bert --arg num_labels=1000000000": "hf:bert: num_labels = 1,000,000,000: give a number up",
    "shapes countless.py:f": "more than 262,144 modules (at Deep.a): is a number of layers too large?",
    "shapes --quiet=3": "--quiet=3: takes no value; give --quiet alone",
    "diff resnet18": "diff needs a second model",
    f"shapes {NET} --columns Ouput": "--columns: unknown column 'Ouput'; did you mean Output or Input?",
    f"shapes {NET} --sort '-Parms %'": "--sort: unknown column 'Parms %'; did you mean Params % or params or MACs %?",
    f"activations {NET} --match *.bias": "no module matches --match '*.bias'",
    f"grads {NET} --type ReLU": "no parameter matches --type ReLU",
    "activations net.py:pair -b 3": "--batch-size: net.py:pair comes with an example input",
    "grads ssdlite320_mobilenet_v3_large -i 5": "a detector takes images of 3 sizes",
    "shapes net.py:Net -i 1x99999999999999999999": "preparing net.py:Net or its input failed",
    "shapes quits.py:f -i 1": "building quits.py:f failed: SystemExit",
    "shapes helped.py:f": "helper_bad.py is not valid Python: line 1",
    "models resnt": "unknown model 'resnt'; did you mean",
}


@pytest.fixture
def mistakes(net: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_HOME", str(net))
    (net / "train.py").write_text("loss = net(x).sum()\nloss.backward()\n")
    (net / "mymodel").mkdir()
    (net / "mymodel" / "config.json").write_text('{"model_type": "bert"}')
    lines = "class Net: pass", "def variant(n=1): return Net()", "def main(): print(1)", "def part(n): return Net()"
    (net / "factory.py").write_text("\n".join((*lines, "def build_net(*, n=1): return Net()", "def _own(): return 1")))
    (net / "train.run.jsonl").write_text('{"line": "run"}')
    (net / "notes.txt").write_text("hello")
    (net / "w.gguf").write_text("GGUF")
    (net / "syntax.py").write_text("def f(:")
    (net / "binary.py").write_bytes(b"\xff\xfe\x00\x01")
    (net / "fails.py").write_text("1 / 0")
    (net / "zero.json").symlink_to("/dev/zero")
    np.save(net / "x.npy", np.ones((1, 4), np.float32))
    (net / "deep").mkdir()
    (net / "deep" / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 1000000000}')
    lines = "class Deep(torch.nn.Module): pass", "def f():", "    x, y = Deep(), Deep()", "    while 1: x.a = y"
    (net / "countless.py").write_text("\n".join(("import torch", *lines)))
    (net / "quits.py").write_text("import sys\ndef f():\n    sys.exit(0)\n")
    (net / "helped.py").write_text("import helper_bad\n")
    (net / "helper_bad.py").write_text("def f(:")
    (net / "junk.pt").write_text("hello")
    (net / "empty.pt").write_bytes(b"")
    (net / "junk.safetensors").write_text("hello")
    torch.save(torch.nn.Linear(1, 1), net / "whole.pt")
    torch.save(3, net / "number.pt")
    return net


@pytest.mark.parametrize("line", MISTAKES)
def test_one_clear_line(cli: Cli, mistakes: Path, line: str) -> None:
    ran = cli(*shlex.split(line))
    assert (ran.code, ran.out) == (2, ""), ran.out
    require_clear_error(ran, MISTAKES[line])


def test_every_number_has_bounds_where_it_is_declared() -> None:
    """Infinities, numbers of a thousand digits and NaN are then refused, before any work."""
    options = [(name, one) for name in COMMANDS for one in _LazyCommands()[name].params]
    numbers = [(name, one) for name, one in options if one.type_descriptor.annotation in (int, float)]
    assert not [f"{name} {one.name}" for name, one in numbers if one.min is None or one.max is None]
    assert {"passes", "repeat", "timeout", "every", "port", "bucket_cap_mb"} <= {one.name for _, one in numbers}


@pytest.mark.sweep
@pytest.mark.parametrize("value", ["nan", "1e400", "-1", "9" * 5000])
def test_numbers_beyond_all_bounds(cli: Cli, value: str) -> None:
    for argv in (("comm", "--bucket-cap-mb"), ("check", "--rtol"), ("run", "--max-seconds"), ("run", "--every")):
        ran = cli(*argv, value, "x")
        assert ran.code == 2 and f"{argv[1]} " in ran.err and "give a" in ran.err and len(ran.err) < 500, ran.err


@pytest.mark.sweep
def test_a_wrong_shape_names_the_module_and_shows_the_table_up_to_there(cli: Cli, net: Path) -> None:
    ran = cli("activations", "net.py:Net", "--input", "2x3x9x9")
    assert ran.code == 2
    assert ran.err.startswith("hookcli: error: fc (Linear) failed on input 2x648: RuntimeError: ")
    assert ran.err.splitlines()[1].startswith("  at net.py:") and "Traceback" not in ran.err
    assert "conv" in ran.out and "incomplete: the run failed" in ran.out
    on_meta = cli("shapes", "net.py:Net", "--input", "2x3x9x9")
    assert "fc (Linear) failed on input 2x648" in on_meta.err and "2x648" in on_meta.out


def test_a_crash_in_the_models_own_code_is_the_models(cli: Cli, net: Path) -> None:
    ran = cli("activations", "net.py:Crashes", "-i", "2x3x4x4")
    assert "the model (Crashes) failed on input 2x3x4x4: KeyError: 'lost'" in ran.err
    assert "net.py:" in ran.err and "hookcli/" not in ran.err and "  conv " in ran.out


def test_debug_shows_everything(cli: Cli, net: Path) -> None:
    ran = cli("activations", "net.py:Crashes", "-i", "2x3x4x4", "--debug")
    assert "Traceback" in ran.err and 'raise KeyError("lost")' in ran.err and ran.code == 2


def test_a_state_dict_that_does_not_fit_says_what_is_missing_and_extra(cli: Cli, net: Path) -> None:
    torch.save({"conv.weight": torch.ones(8, 3, 3, 3), "conv.bias": torch.ones(3), "head.bias": torch.ones(2)}, "w.pt")
    ran = cli("activations", *NET.split(), "--weights", "w.pt")
    assert ran.code == 2 and ran.err.strip().endswith("(--no-strict loads what fits)")
    for part in ("missing 2 (fc.weight, fc.bias)", "extra 1 (head.bias)", "wrong shape 1 (conv.bias is 3, not 8)"):
        assert part in ran.err
    ran = cli("activations", *NET.split(), "--weights", "w.pt", "--no-strict")
    assert ran.code == 0 and "loaded 1 of 4 tensors" in ran.err


def test_our_own_bug_shows_its_traceback_and_is_no_finding(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookcli.commands.models.known_entries", lambda _: 1 / 0)
    ran = cli("models")
    assert ran.code == 2 and "ZeroDivisionError" in ran.err and "this is a bug in hookcli" in ran.err


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        swept("raise ImportError('libtorch_cpu.so: failed to map segment')", "libtorch_cpu.so: failed to map segment"),
        ("import ctypes; ctypes.CDLL('libgone.so')", "libgone.so: cannot open shared object file"),
        ("raise ModuleNotFoundError('No module named \\'torch\\'', name='torch')", "No module named 'torch'"),
    ],
)
def test_where_torch_can_t_be_imported_that_is_said(net: Path, fails: str, said: str) -> None:
    (net / "broken" / "torch").mkdir(parents=True)
    (net / "broken" / "torch" / "__init__.py").write_text(fails)
    program = "import sys; sys.path.insert(0, 'broken'); from hookcli.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "check", "net.py:Net", "-i", "2x3x4x4"]
    ran = forks.run(command, check=False, capture_output=True, text=True, fresh=True)
    assert ran.returncode == 2 and ran.stderr.startswith(f"hookcli: error: torch can't be imported: {said}")
    assert len(ran.stderr.splitlines()) == 1


def test_another_import_that_fails_is_our_own_bug(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def known_entries(_: object) -> None:
        raise ImportError("cannot import name 'lost' from 'hookcli.commands'")

    monkeypatch.setattr("hookcli.commands.models.known_entries", known_entries)
    ran = cli("models")
    assert ran.code == 2 and "'lost'" in ran.err and "this is a bug in hookcli" in ran.err


def test_ctrl_c_reports_what_was_seen(cli: Cli, net: Path) -> None:
    (net / "stops.py").write_text(
        "from torch import nn\nclass Stops(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.first = nn.Linear(2, 2)\n"
        "    def forward(self, x):\n        self.first(x)\n        raise KeyboardInterrupt\n"
    )
    ran = cli("activations", "stops.py:Stops", "-i", "1x2")
    assert ran.code == 130 and ran.err == "hookcli: interrupted\n" and "first" in ran.out


@pytest.mark.sweep
def test_a_reader_that_has_seen_enough() -> None:
    command = [sys.executable, "-m", "hookcli", "models", "--format", "csv"]
    process = forks.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait() == 0


def test_a_pipe_that_gets_both_streams_has_the_error_once(net: Path) -> None:
    command = [sys.executable, "-m", "hookcli", "shapes", "net.py:Net", "-i", "2x3x4"]
    ran = forks.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert ran.returncode == 2 and ran.stdout.count(" failed on input ") == 1


@pytest.fixture
def mismatch(net: Path) -> dict[str, str]:
    """A torchvision that fails on import as one that was built for another torch does."""
    package = net / "site" / "torchvision"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text('raise RuntimeError("operator torchvision::nms does not exist")\n')
    (package / "version.py").write_text("__version__ = '0.1'\n")
    (package / "models" / "resnet.py").write_text("@register_model()\ndef resnet18(*, weights=None): ...\n")
    cache = {"XDG_CACHE_HOME": str(net / "cache")}
    return {**os.environ, **cache, "PYTHONPATH": str(net / "site")}


def test_torch_and_torchvision_that_do_not_match(mismatch: dict[str, str]) -> None:
    code = """if True:
        import sys
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]  # of which this process is a fork
        from hookcli.cli import main
        assert main(["shapes", "resnet18"]) == 2 and main(["shapes", "net.py:Net", "-i", "2x3x4x4"]) == 0
        """
    command = [sys.executable, "-c", code]
    ran = forks.run(command, capture_output=True, text=True, env=mismatch, check=False)
    assert ran.returncode == 0 and len(ran.stderr.splitlines()) == 1, ran.stderr
    assert f"torch {torch.__version__} and torchvision 0.1 do not match" in ran.stderr
    assert "operator torchvision::nms does not exist" in ran.stderr and "pip install" in ran.stderr


def test_main_returns_and_does_not_exit() -> None:
    assert main(["shapes", "resnet5"]) == 2
