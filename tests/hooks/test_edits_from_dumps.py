"""`from(DUMP)`: the tensors of another run, against PyTorch's own hooks written by hand; and dumps that do not fit."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Hand, Shared, untouched
from torch import Tensor, nn

from hookcli import Step, capture, watch
from hookcli.errors import UsageError
from hookcli.hooks.edits import dumps
from hookcli.hooks.edits.base import parse_edit
from hookcli.probes.activations import ActivationsProbe, InputsProbe
from hookcli.probes.grads import GradsProbe
from hookcli.table.dump import Dump
from hookcli.tensors.files.dump_reader import DumpReader
from hookcli.tensors.files.dump_writer import DumpWriter


def dumped(folder: Path, probe: Any, model: nn.Module, *inputs: Any, most: int = 10**9, **keywords: Any) -> str:
    """Write what a run has at every module to a dump."""
    capture(model, *inputs, probes=partial(probe, sink=DumpWriter(folder, most, Dump("", ()))), **keywords)
    return str(folder)


def output_of(model: nn.Module, *inputs: Any, edits: Any = ()) -> Tensor:
    """What the model itself returns under these edits."""
    with torch.no_grad(), watch(model, edits=edits):
        output = model(*inputs)
    return output if isinstance(output, Tensor) else output.logits


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=32, n_positions=16, use_cache=False)
    return GPT2LMHeadModel(config).eval()


@pytest.mark.sweep
def test_the_last_block_of_another_run_gives_its_output_bit_for_bit(tmp_path: Path) -> None:
    """GPT-2 on other tokens; then on its own, with one module alone, as a forward hook by hand does it."""
    model = gpt2()
    one, other = torch.arange(8)[None], torch.arange(8, 16)[None]
    theirs = model(other).logits
    dump = dumped(tmp_path / "other", ActivationsProbe, model, other)
    with untouched(model):
        everything = output_of(model, one, edits=[f"transformer.h.1*:output=from({dump})"])
        mlp = output_of(model, one, edits=f"transformer.h.1.mlp:output=from('{dump}')")
        elsewhere = output_of(model, one, edits=f"transformer.h.1.mlp:output=from({dump}, transformer.h.0.mlp)")
    assert torch.equal(everything, theirs) and not torch.equal(model(one).logits, theirs)
    kept: dict[str, Tensor] = {}
    parts = {name: model.get_submodule(f"transformer.h.{name}.mlp") for name in "01"}
    handles = [m.register_forward_hook(lambda m, a, y, n=n: kept.update({n: y})) for n, m in parts.items()]
    model(other)
    for handle in handles:
        handle.remove()
    for name, found in (("1", mlp), ("0", elsewhere)):
        handle = parts["1"].register_forward_hook(lambda m, a, y, n=name: kept[n])
        assert torch.equal(found, model(one).logits)
        handle.remove()


def test_the_index_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at each module: a thousand took 90 s. It is read again when it has changed."""
    model, x, read = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4))), torch.randn(1, 2), list[str]()
    dump = dumped(tmp_path / "d", ActivationsProbe, model, x)
    monkeypatch.setattr(dumps, "DumpReader", lambda folder: read.append(folder) or DumpReader(folder))
    for count in (1, 2):
        assert torch.equal(output_of(model, x + 1, edits=f"*:output=from({dump})"), model(x))
        assert len(read) == count
        dumped(tmp_path / "d", ActivationsProbe, model, x)


def test_channels_last_keeps_its_strides(tmp_path: Path) -> None:
    """Else the next convolution takes another kernel."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)).to(memory_format=torch.channels_last)
    one, other = (torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last) for _ in range(2))
    seen: list[Tensor] = []
    model[1].register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    dump = dumped(tmp_path / "d", ActivationsProbe, model, other)
    assert torch.equal(output_of(model, one, edits=f"0:output=from({dump})"), model(other))
    assert seen[1].stride() == seen[0].stride() and seen[1].is_contiguous(memory_format=torch.channels_last)


def test_each_call_and_each_batch_get_their_own(tmp_path: Path) -> None:
    model, x = Shared(), torch.randn(3, 4)
    outputs: list[Tensor] = []
    lin = next(m for m in model.modules() if isinstance(m, nn.Linear))
    fqn = next(n for n, m in model.named_modules() if m is lin)
    handle = lin.register_forward_hook(lambda m, a, y: outputs.append(y))
    inputs = (x,) if not any(isinstance(m, nn.Embedding) for m in model.modules()) else (torch.arange(4)[None],)
    dump = dumped(tmp_path / "d", ActivationsProbe, model, *inputs)
    handle.remove()
    edit = parse_edit(f"{fqn}:output=from({dump})")
    for call, theirs in enumerate(outputs):
        assert torch.equal(edit.apply(fqn, call, "", torch.zeros_like(theirs)), theirs)
    assert len(outputs) > 1
    edit.numbers["batch"] = 1
    with pytest.raises(UsageError, match=f"has no output of {fqn}, batch 1: it has output; output, call 1; "):
        edit.apply(fqn, 0, "", torch.zeros_like(outputs[0]))


def test_inputs_and_gradients_of_every_kind(tmp_path: Path) -> None:
    """y = 3 relu(2a - 1) + 3 relu(2b - 1): with the input of `out` from x = [2, 3], 3 * 3 + 3 * 5 = 24."""
    model = Hand().double()
    one, other = (torch.tensor([x], dtype=torch.float64) for x in ([1.0, 2.0], [2.0, 3.0]))
    inputs = dumped(tmp_path / "inputs", InputsProbe, model, other)
    assert output_of(model, one, edits=f"out:input=from({inputs})").item() == 24
    three = Step(loss=lambda y: 3 * y.sum())  # their gradients are three times ours
    outputs = dumped(tmp_path / "outputs", partial(GradsProbe, "outputs"), model, other, step=three)
    received = dumped(tmp_path / "received", partial(GradsProbe, "inputs"), model, other, step=three)
    parameters = dumped(tmp_path / "parameters", GradsProbe, model, other, step=three)
    for edit, first, out in (
        (f"relu:grad_output=from({outputs})", [[9, 18], [9, 18]], [[1, 3]]),
        (f"relu:grad_input=from({received})", [[9, 18], [9, 18]], [[1, 3]]),
        (f"out.weight:grad=from({parameters})", [[3, 6], [3, 6]], [[9, 15]]),
        (f"relu:output=from({dumped(tmp_path / 'o', ActivationsProbe, model, other)})", [[0, 0], [0, 0]], [[3, 5]]),
    ):
        rows = {row.fqn: row for row in capture(model, one, probes="grads", edits=edit).rows}
        for name, expected in (("first.weight", first), ("out.weight", out)):
            assert rows[name].stats.l2 == pytest.approx(torch.tensor(expected).double().norm().item(), abs=0), edit


def test_dumps_that_do_not_fit_get_one_line(tmp_path: Path) -> None:
    model, x = Hand(), torch.ones(1, 2)
    dump = dumped(tmp_path / "d", ActivationsProbe, model, x)
    small = dumped(tmp_path / "small", ActivationsProbe, model, x, most=8)
    index = json.loads((tmp_path / "d" / "index.json").read_text())
    by_name = {row["fqn"]: row for row in index["tensors"]}

    def refused(text: str, *inputs: Tensor, of: nn.Module = model) -> str:
        with pytest.raises(UsageError) as caught:
            capture(of, *(inputs or (x,)), probes="activations", edits=text)
        assert "\n" not in str(caught.value) and text in str(caught.value)
        return str(caught.value).partition(": ")[2]

    assert f"{dump} has 1x2 float32 there, this run 2x2 float32" in refused(
        f"relu:output=from({dump})", torch.ones(2, 2)
    )
    wide = f"{dump} has 1x2 float32 there, this run 1x2 float64"
    assert wide in refused(f"relu:output=from({dump})", x.double(), of=Hand().double())
    assert "it has output" in refused(f"relu:input=from({dump})")
    assert "larger than --max-bytes" in refused(f"out:output=from({small})")
    assert "no output of rely: it has nothing there" in refused(f"relu:output=from({dump}, rely)")
    assert "nowhere/index.json" in refused("relu:output=from(nowhere)")
    assert "missing a required argument: 'dump'" in refused("relu:output=from")
    assert "gets its place from hookcli" in refused(f"relu:output=from('{dump}', place=1)")
    secret = tmp_path / "secret.safetensors"
    (tmp_path / "d" / by_name["relu"]["file"]).replace(secret)
    assert "can't be read as a dump's tensors" in refused(f"relu:output=from({dump})")
    (tmp_path / "d" / by_name["relu"]["file"]).symlink_to(secret)
    assert "can't be read as a dump's tensors" in refused(f"relu:output=from({dump})")
    (tmp_path / "d" / "index.json").write_text('{"schema": 1, "tensors": [{"fqn": 3}]}')
    assert "damaged" in refused(f"relu:output=from({dump})")
