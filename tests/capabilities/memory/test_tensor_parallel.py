"""Memory of one of several processes that divide a model by its plan, beside models that are really placed so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from capabilities.memory.test_simulate import SCALARS, measured
from support import require_clear_error, swept
from torch import Tensor, nn
from torch.distributed.tensor.parallel import parallelize_module

from hookcli.capabilities.memory.plan import MemoryPlan
from hookcli.capabilities.memory.profile import Kind
from hookcli.capabilities.memory.request import MemoryRequest
from hookcli.capabilities.memory.simulate import simulate
from hookcli.engine.setting import Setting
from hookcli.engine.tensor_parallel import divided, plans_of
from hookcli.errors import UsageError
from hookcli.hooks.torch_private.distributed import fake_processes
from hookcli.sources.base import InputSpec, Recipe

Cli = Callable[..., Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """Two blocks and a head, with a plan in the words of Transformers."""

    tp_plan: ClassVar = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise", "head": "colwise_gather_output"}

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


RECIPE = Recipe("net", Net, (InputSpec((32, 64)),))


def placed() -> nn.Module:
    """The net, placed on the CPU by PyTorch in the group that exists."""
    model = Net()
    [(owner, plan)] = plans_of(model, "")
    return parallelize_module(owner, torch.distributed.device_mesh.init_device_mesh("cpu", (2,)), plan)


@pytest.mark.parametrize("optimizer", ["adamw", swept("sgd")])
def test_peaks_are_those_of_a_real_step_with_shards(optimizer: str) -> None:
    request = MemoryRequest(RECIPE, Setting(train=True), MemoryPlan(optimizer, "for-loop"), tensor_parallel=2)
    totals = request.reports(["memory"])[0].totals
    with fake_processes(2):
        real = measured(placed, (32, 64), optimizer)
    assert [totals["first_peak_bytes"], totals["peak_bytes"]] == pytest.approx(real, abs=SCALARS)
    assert not dist.is_initialized()


def test_parameters_gradients_and_optimizer_state_are_those_of_a_placed_llama() -> None:
    """The gradient of an embedding whose rows are divided is whole, as PyTorch leaves it."""
    import transformers

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    tokens = InputSpec((2, 7), torch.int64, 64)
    recipe = Recipe("llama", lambda: transformers.LlamaForCausalLM(config), (tokens,))
    with divided(Setting(train=True), 2) as setting:
        held = simulate(recipe, setting, MemoryPlan("adamw")).steady.timeline[-1].held
    with fake_processes(2) as mesh:
        model = transformers.LlamaForCausalLM(config)
        parallelize_module(model, mesh, plans_of(model, "")[0][1])
        model(torch.zeros(2, 7, dtype=torch.int64)).logits.sum().backward()
        parameters = [getattr(p, "to_local", lambda p=p: p)() for p in model.parameters()]
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer.step()
        states = [x for state in optimizer.state.values() for x in state.values()]
        gradients = [getattr(p.grad, "to_local", lambda p=p: p.grad)() for p in model.parameters()]
    parameter_bytes = sum(x.nbytes for x in parameters)
    assert held[Kind.PARAMETERS] == parameter_bytes < 4 * sum(p.numel() for p in model.parameters())
    assert held[Kind.GRADIENTS] == sum(x.nbytes for x in gradients)
    state_bytes = sum(getattr(x, "to_local", lambda x=x: x)().nbytes for x in states)
    assert held[Kind.OPTIMIZER_STATE] == pytest.approx(state_bytes, abs=SCALARS)


class Tied(nn.Module):
    tp_plan: ClassVar = {"tokens": "embedding_rowwise", "head": "colwise_gather_output"}

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(64, 32), nn.Linear(32, 64, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.tokens(x))


def test_tied_weights_stay_one() -> None:
    with divided(Setting(train=True), 4) as setting:
        recipe = Recipe("tied", Tied, (InputSpec((2, 7), torch.int64, 64),))
        found = simulate(recipe, setting, MemoryPlan("sgd"))
    assert found.steady.timeline[-1].held[Kind.PARAMETERS] == 4 * 64 * 32 // 4


class Pair(nn.Module):
    """Two nets, each with its plan; the second one's parts have plans as well, which the whole one's stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Net(), Net()
        self.second.blocks[0].tp_plan = {"up": "rowwise"}

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x), self.second(x)


def test_every_outermost_plan_is_followed() -> None:
    """Beside a sum by hand: matrices in halves, and whole norms and biases of rows."""
    with divided(Setting(train=True), 2) as setting:
        found = simulate(Recipe("pair", Pair, RECIPE.inputs), setting, MemoryPlan("sgd"))
    block = (64 * 256 + 256 + 256 * 64) // 2 + 64 + 2 * 64
    assert found.steady.timeline[-1].held[Kind.PARAMETERS] == 4 * 2 * (2 * block + (64 * 32 + 32) // 2)


NETS = """
from capabilities.memory.test_tensor_parallel import Net
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

class Own(Net):
    tp_plan = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}

class Reads(Net):
    def forward(self, x):
        return super().forward(x) * float(x.sum())

class Unknown(Net):
    tp_plan = {"blocks.*.up": "packed_colwise"}

class Misnamed(Net):
    tp_plan = {"layers.*.up": "colwise"}

class Half(Net):
    tp_plan = {"blocks.*.up": "colwise"}

class Blocks(Net):
    tp_plan = {"blocks.*": "colwise"}
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize("device", [swept("cpu"), "cuda"])
def test_the_command(cli: Cli, device: str) -> None:
    """Each process has a part of the model and the whole batch; a plan's own styles are taken as they are."""
    alone, both, own = (
        json.loads(cli("memory", *argv, "-i", "32x64", "--device", device, "-f", "json", "-q").out)["reports"][0]
        for argv in (
            ("nets.py:Net",),
            ("nets.py:Net", "--parallel", "tp=2"),
            ("nets.py:Own", "--parallel", "tp=2"),
        )
    )
    parameters = [sum(row["param_bytes"] for row in one["rows"]) for one in (alone, both, own)]
    assert parameters[1] < parameters[2] < parameters[0]
    assert (both["meta"]["processes"], both["meta"]["parallel"]) == (2, "tp")
    assert "processes" not in alone["meta"] and any(note.startswith("tp: ") for note in both["meta"]["notes"])
    ran = cli("memory", "nets.py:Net", "-i", "32x64", "--parallel", "tp=2", "--fits", "64MiB")
    assert ran.out.startswith("A batch of 32 fits into 64MiB: ") and "--parallel tp=2 " in ran.out + ran.err
    ran = cli("memory", "nets.py:Net", "-i", "32x64", "--parallel", "tp=2", "--checkpoint", "blocks.*")
    assert f"all processes together compute {2 * 2 * 32 * 64 * 256 / 1e6:.4g} MMACs again" in " ".join(ran.out.split())


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("torch.nn:Identity", "--parallel", "tp=2"), "--parallel tp=2: Identity has no plan; give its class one"),
        (("nets.py:Unknown", "--parallel", "tp=2"), "its plan has packed_colwise for blocks.*.up, which PyTorch's API"),
        (("nets.py:Reads", "--parallel", "tp=2"), "divided on the meta device: the model (Reads) failed"),
        (("nets.py:Misnamed", "--parallel", "tp=2"), "--parallel tp=2: its plan (layers.*.up) fits no layer with"),
        (("nets.py:Half", "--parallel", "tp=2"), "--parallel tp=2, divided on the meta device: blocks.0.down (Linear)"),
        (("nets.py:Blocks", "--parallel", "tp=2"), "ColwiseParallel currently only support"),
        (("nets.py:Net", "--parallel", "tp=3"), "--parallel tp=3 (256 of blocks.0.up.weight does not divide by 3)"),
        (("nets.py:Net", "--parallel", "tp=2", "--optimizer", "adafactor"), "meta device: the run failed"),
        (("nets.py:Net", "--parallel", "tp=2", "--nproc", "2"), "tp has its own number; remove --nproc"),
        (("nets.py:Net", "--parallel", "tp=2", "--amp", "bfloat16"), "not computed together"),
        (("nets.py:Net", "--parallel", "tp=0"), "give ddp, fsdp, or tp=N with N from 2 to 1,024"),
        (("nets.py:Net", "--parallel", "pp=2"), "give ddp, fsdp, or tp=N with N from 2 to 1,024"),
        (("nets.py:Net", "--parallel", "tp"), "unknown --parallel 'tp'; did you mean tp=8?"),
    ],
)
def test_mistakes(cli: Cli, argv: tuple[str, ...], says: str) -> None:
    require_clear_error(cli("memory", *argv, "-i", "32x64"), says)
    assert not dist.is_initialized()


def test_heads_that_do_not_divide_are_refused(cli: Cli) -> None:
    small = ("--arg", "num_hidden_layers=1", "--arg", "num_attention_heads=4")
    ran = cli("memory", "hf:llama", "--task", "causal-lm", *small, "-i", "1x4:int64", "--parallel", "tp=3")
    require_clear_error(ran, "--parallel tp=3: num_attention_heads = 4 does not divide by 3")


def test_a_pytorch_without_such_groups_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with pytest.raises(UsageError, match="can't make a group for it"), divided(Setting(), 2):
        pass
