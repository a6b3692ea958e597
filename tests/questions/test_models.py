"""Questions about a model: each is answered in the first lines, by a command that help, or the command before, names.

The models are written as users write them; what is wrong with each was planted there.
"""

from __future__ import annotations

import re

import pytest
from questions.asking import Asker
from support import swept

WIDTHS = ("80", "200")


@pytest.mark.sweep
def test_what_are_the_shapes_and_how_big_is_it(ask: Asker) -> None:
    """The GPT: 6 blocks of 4 x 96 x 96 + 8 x 96 x 96 weights, an embedding that the head shares; without an input
    it says what to type.
    """
    refused = ask("hookcli shapes gpt.py:GPT", code=2)
    said = re.search(r"for example (--input \S+)$", refused.err.strip())
    assert said is not None
    block = 12 * 96 * 96 + 9 * 96 + 4 * 96  # weights; biases of qkv, proj, mlp; two norms
    total = 6 * block + (1000 + 128) * 96 + 2 * 96
    for width in WIDTHS:
        answer = ask(f"hookcli shapes gpt.py:GPT {said[1]}", COLUMNS=width)
        model, *_ = [line for line in answer.out.splitlines() if line.startswith("(model)")]
        assert f"{total:,}" in model and "1x16x1000" in model and '["logits"]' in model
        assert f"{6 * block:,}" in answer.row("blocks.0-5") and "(6x)" in answer.row("blocks.0-5")
        assert f"{total:,} parameters · {total:,} trainable" in answer.out
        assert all(len(line) <= int(width) for line in answer.out.splitlines())


@pytest.mark.sweep
def test_shapes_of_a_unet_whose_sizes_are_odd(ask: Asker) -> None:
    """A pool that is called three times shows three shapes, and the containers that nobody calls are not rows."""
    answer = ask("hookcli shapes unet.py:UNet --input 1x3x67x93")
    assert "1x16x33x46 | 1x32x16x23 | 1x64x8x11" in answer.row("pool")
    names = [line.split()[0] for line in answer.out.splitlines()[3:] if line.split()[:1]]
    assert {"downs.0", "downs.2", "bottleneck", "ups.5", "head"} <= {*names} and not {"downs", "ups"} & {*names}


@pytest.mark.sweep
def test_what_fills_my_memory(ask: Asker) -> None:
    """In the GPT's blocks, the GELU and the layer after it keep the widest tensors, 4 x 96 wide: 2.25 MiB each."""
    first = ask("hookcli shapes gpt.py:GPT --input 2x128:int64")
    said = re.search(
        r"memory held to train at batch 2: .* \((--train --sort -kept): which modules keep it\)", first.out
    )
    assert said is not None
    answer = ask(f"hookcli shapes gpt.py:GPT --input 2x128:int64 {said[1]}")
    names = [line.split()[0] for line in answer.out.splitlines()[3:] if " MiB" in line and "memory" not in line]
    widest = 6 * 2 * 128 * 4 * 96 * 4 / 2**20
    assert names[:2] == ["(model)", "blocks.0-5"] and {*names[2:6]} >= {"blocks.0-5.mlp.1", "blocks.0-5.mlp.2"}
    assert all(f"{widest:.4g} MiB" in answer.row(f"blocks.0-5.mlp.{n}") for n in (1, 2))


@pytest.mark.sweep
@pytest.mark.parametrize("environment", [{"COLUMNS": "80"}, swept({"COLUMNS": "200", "NO_COLOR": "1"})])
def test_which_layers_are_dead(ask: Asker, environment: dict[str, str]) -> None:
    answer = ask("hookcli check cnn.py:AllDead --input 16x3x32x32", **environment)
    head = " ".join(" ".join(answer.out.splitlines()[:4]).split())
    assert "HK010 warning act2: 20 of 20 channels zero for every input" in head
    if environment["COLUMNS"] != "80":
        return
    second = ask(answer.next)
    first, *_, worst = second.out.splitlines()[:5]
    assert first.startswith("act2: all zero") and re.match(r"act2 .*100%", worst), second.out


def test_a_layer_of_which_a_part_is_dead_is_named_though_all_checks_pass(ask: Asker) -> None:
    answer = ask("hookcli check cnn.py:CNN --input 16x3x32x32")
    headline, said, *_ = answer.out.splitlines()
    assert "passed, though act3 has dead channels (" in headline
    assert said.startswith("act3: 6 of 20 channels zero for every input; ")
    options = re.search(r"use `(--threshold \S+)` to report these$", said)
    assert options is not None
    second = ask(f"hookcli check cnn.py:CNN --input 16x3x32x32 {options[1]}")
    assert second.out.splitlines()[0] == "HK010  warning  act3: 6 of 20 channels zero for every input"


@pytest.mark.sweep
def test_are_gradients_vanishing_and_where(ask: Asker) -> None:
    """The bias of layers.6 holds its tanh at the bound, so that layers.0 to 6 get no gradient."""
    answer = ask("hookcli check mlp.py:Saturated --input 8x32")
    lines = answer.out.splitlines()
    assert lines[1] == "HK011  warning  acts.6: 64 of 64 channels at a bound for every input"
    assert lines[3].startswith("HK012  warning  layers.6.weight: from here to the input gradients stay below 1.000e-04")
    assert lines[4].split() == ["May", "follow", "from", "HK011", "acts.6:", "fix", "that", "first"]
    assert "Mean" in ask(answer.next).out
    deep = ask("hookcli check mlp.py:MLP --input 8x32")
    assert deep.out.splitlines()[0].startswith("HK012  warning  layers.")
    grads = ask(deep.next, COLUMNS="80").out.splitlines()
    norms = {line.split()[0]: float(line.split()[-1]) for line in grads if re.match(r"layers\.\d+\.weight ", line)}
    assert any(line.split()[-1:] == ["L2"] for line in grads), grads
    assert re.match(r"layers\.\d+\.weight: gradient vanishes from here to the input ", grads[0])
    assert norms["layers.0.weight"] < 1e-6 * norms["layers.11.weight"]


@pytest.mark.sweep
def test_is_it_safe_for_float16(ask: Asker) -> None:
    big = ask("hookcli check half.py:Big --input 8x16")
    assert re.search(r"^HK016  warning  fc2: its output reaches \S+; .*float16 number is 65504$", big.out, re.MULTILINE)
    assert all(line.split()[2].startswith("fc2") for line in big.out.splitlines() if line.startswith("HK"))
    small = ask("hookcli check half.py:Flushed --input 8x16")
    assert re.search(r"^HK017  warning  fc2: the root mean square of its output is ", small.out, re.MULTILINE)
    assert small.out.splitlines()[1].split()[2] == "fc2:" and "fc2" in ask(small.next).out
    safe = ask("hookcli check gpt.py:GPT --input 2x16:int64")
    assert re.fullmatch(r"All \d+ checks passed \(67 modules\)", safe.out.splitlines()[0])
