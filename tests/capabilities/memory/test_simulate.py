"""Simulated memory against PyTorch's profiler, which counts what the CPU's allocator hands out in a real step."""

import gc
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from hookcli.capabilities.memory.check_options import OPTIMIZERS as NAMES
from hookcli.capabilities.memory.kernels import CpuKernels
from hookcli.capabilities.memory.parallel import one_process
from hookcli.capabilities.memory.plan import MemoryPlan
from hookcli.capabilities.memory.profile import Kind, Place
from hookcli.capabilities.memory.simulate import simulate
from hookcli.engine.setting import Setting
from hookcli.errors import UsageError
from hookcli.sources.base import InputSpec, Recipe, copy_model
from tests.support import untouched

SCALARS = 256
"""Bytes of a few numbers, such as step counts, of which an interpreter may hold one more or less."""


class Net(nn.Module):
    """Branches, whose gradients are added up, a tied weight, and an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 96)
        self.norm = nn.LayerNorm(96)
        self.second = nn.Linear(96, 96, bias=False)
        self.unused = nn.Linear(512, 512)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return (self.second(self.norm(x)) + self.second(x).tanh()) * x


class Convolutions(nn.Module):
    """Convolutions of all sorts: strided, depthwise, grouped, dilated, channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 7, 2, 3), nn.BatchNorm2d(32), nn.ReLU(inplace=True))
        self.strided = nn.Conv2d(32, 64, 3, 2, 1)
        self.depthwise = nn.Conv2d(64, 64, 5, padding=2, groups=64)
        self.grouped = nn.Conv2d(64, 64, 3, padding=1, groups=16)
        self.pointwise = nn.Conv2d(64, 40, 1)
        self.dilated = nn.Conv2d(40, 32, 3, padding=12, dilation=12)
        self.norm = nn.LayerNorm(32)
        self.last = nn.Conv2d(32, 48, 2, 2)
        self.up = nn.ConvTranspose2d(48, 16, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.strided(self.stem(x))
        x = self.dilated(self.pointwise(self.grouped(self.depthwise(x)) + x))
        x = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.up(self.last(x))


RECIPE = Recipe("net", Net, (InputSpec((32, 64)),))
OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "adagrad": torch.optim.Adagrad}
IMPLEMENTATIONS = {"foreach": {"foreach": True}, "fused": {"fused": True}, "for-loop": {}}


def measured(
    build: Callable[[], nn.Module], shape: tuple[int, ...], optimizer: str, way: str = "for-loop", amp: bool = False
) -> list[int]:
    """The peaks of the first and second step, by PyTorch's profiler; each further thread would need room of its own."""
    torch.set_num_threads(1)
    gc.collect()  # what earlier tests left, freed meanwhile, would count as memory that a step gives back
    peaks, used = [], 0
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        model, x = build(), torch.randn(shape)
        made = OPTIMIZERS[optimizer](model.parameters(), lr=1e-3, **IMPLEMENTATIONS[way])
        for _ in range(2):
            with torch.profiler.record_function("a step"):
                made.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                    loss = model(x).sum()
                loss.backward()
                del loss
                made.step()
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda e: e.start_ns())
    ends = [e.end_ns() for e in events if e.name() == "a step"]
    for event in (e for e in events if e.name() == "[memory]"):
        used += event.nbytes()
        peaks.append((event.start_ns(), used))
    return [
        max(used for when, used in peaks if begin < when <= end)
        for begin, end in zip([0, *ends[:-1]], ends, strict=True)
    ]


@pytest.mark.parametrize("way", IMPLEMENTATIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_peaks_are_those_of_a_real_step(optimizer: str, way: str) -> None:
    found = simulate(RECIPE, Setting(train=True), MemoryPlan(optimizer, way))
    assert [found.first.peak.highest, found.steady.peak.highest] == pytest.approx(
        measured(Net, (32, 64), optimizer, way), abs=SCALARS
    )


def test_convolutions_take_less_than_measured_without_the_memory_of_onednn() -> None:
    recipe = Recipe("convolutions", Convolutions, (InputSpec((2, 3, 96, 96)),))
    found = simulate(recipe, Setting(train=True), MemoryPlan("sgd"))
    assert 0.75 < found.steady.peak.highest / measured(Convolutions, (2, 3, 96, 96), "sgd")[1] < 1.001
    assert any("oneDNN takes while it computes a convolution" in note for note in found.notes)


@pytest.mark.parametrize("last", ["input", "weight", "neither"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dims", [2, 3])
def test_results_of_convolutions_are_laid_out_as_on_the_cpu(dims: int, transposed: bool, last: str) -> None:
    tensors = {"input": torch.ones(2, 8, *[9] * dims), "weight": torch.ones(8, 8, *[3] * dims)}
    if last in tensors:
        layout = {2: torch.channels_last, 3: torch.channels_last_3d}[dims]
        tensors[last] = tensors[last].contiguous(memory_format=layout)
    convolution, numbers = torch.ops.aten.convolution.default, [[n] * dims for n in (1, 0, 1)]
    real, simulated = (
        CpuKernels().call(
            convolution, (*(x.to(device) for x in tensors.values()), None, *numbers, transposed, [0] * dims, 1), {}
        )
        for device in ("cpu", "meta")
    )
    assert simulated.stride() == real.stride()


class Normed(nn.Module):
    """Batch normalization, whose gradient is expanded, contiguous, or laid out unlike the input."""

    def __init__(self, after: str) -> None:
        super().__init__()
        self.conv, self.norm, self.after = nn.Conv2d(3, 32, 1), nn.BatchNorm2d(32), after

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        if self.after == "last":
            x = x.contiguous(memory_format=torch.channels_last)
        return x if self.after == "expanded" else x.sigmoid()


@pytest.mark.parametrize("after", ["expanded", "contiguous", "last"])
def test_backward_of_batch_normalization_allocates_twice_for_layouts_that_are_alike(after: str) -> None:
    recipe = Recipe("normed", partial(Normed, after), (InputSpec((2, 3, 96, 96)),))
    found = simulate(recipe, Setting(train=True), MemoryPlan("sgd")).steady.peak
    assert found.operator == "aten.native_batch_norm_backward" or after != "contiguous"
    assert found.highest == pytest.approx(measured(partial(Normed, after), (2, 3, 96, 96), "sgd")[1], rel=0.01)


def test_autocast_keeps_what_it_casts() -> None:
    found = simulate(RECIPE, Setting(train=True), MemoryPlan("sgd", amp=torch.bfloat16))
    assert found.steady.peak.highest == pytest.approx(measured(Net, (32, 64), "sgd", amp=True)[1], rel=0.03)
    assert found.steady.peak.highest != simulate(RECIPE, Setting(train=True), MemoryPlan("sgd")).steady.peak.highest


def test_what_is_held_at_the_peak_has_a_kind_and_a_place() -> None:
    found = simulate(RECIPE, Setting(train=True), MemoryPlan("adamw")).steady
    model = Net()
    used = {n: p for n, p in model.named_parameters() if "unused" not in n}
    size = sum(4 * p.numel() for p in used.values())
    by_kind = found.peak.held
    assert by_kind[Kind.PARAMETERS] == 4 * sum(p.numel() for p in model.parameters())
    assert by_kind[Kind.OPTIMIZER_STATE] == 2 * size + 4 * len(used)
    assert by_kind[Kind.INPUTS] == 4 * 32 * 64
    assert found.held[Place("first"), Kind.PARAMETERS] == 4 * (64 * 96 + 96)
    assert sum(found.held.values()) == found.peak.highest == max(m.highest for m in found.timeline)
    assert [*found.by_phase()] == ["forward", "loss", "backward", "step"]
    backward = {m.place.fqn for m in found.timeline if m.phase == "backward"}
    assert {"first", "norm", "second", ""} <= backward


def test_inference_holds_no_activations() -> None:
    found = simulate(RECIPE, Setting(), MemoryPlan(inference=True)).steady
    assert [*found.by_phase()] == ["forward"]
    assert Kind.ACTIVATIONS not in found.peak.held


def test_a_model_without_operators_holds_its_input() -> None:
    profile = simulate(Recipe("flat", nn.Flatten, (InputSpec((2, 3, 4)),)), plan=MemoryPlan(inference=True))
    for found in (profile, one_process(profile, "ddp", 2), one_process(profile, "fsdp", 2)):
        assert found.steady.peak.held == {Kind.INPUTS: 4 * 24} and found.steady.peak.highest == 4 * 24


def test_replicas_without_gradients_hold_no_buckets() -> None:
    profile = simulate(RECIPE, Setting(), MemoryPlan(inference=True))
    assert one_process(profile, "ddp", 2).steady.peak.highest == profile.steady.peak.highest


class Lazy(nn.Sequential):
    """A net whose parameters its first forward makes."""

    def __init__(self) -> None:
        super().__init__(nn.LazyLinear(96), nn.LazyBatchNorm1d())


def test_lazy_parameters_are_held_as_others() -> None:
    found = simulate(Recipe("lazy", Lazy, (InputSpec((4, 64)),)), Setting(train=True), MemoryPlan("sgd")).steady
    assert found.peak.held[Kind.PARAMETERS] == found.peak.held[Kind.GRADIENTS] == 4 * (64 * 96 + 3 * 96)


class Constant(nn.Module):
    """Adds a view of a tensor that is not a buffer; it is replaced in the first forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.constant = torch.ones(1, 4096, device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        view = self.constant.view(4096)[: x.shape[0]].to(x.device)
        self.constant = torch.ones(1, 4096, device="cpu")
        return self.linear(x) + view[:, None]


def test_a_tensor_that_nobody_told_of_is_in_use_from_the_beginning() -> None:
    found = simulate(Recipe("constant", Constant, (InputSpec((2, 8)),)), Setting(train=True), MemoryPlan("sgd"))
    assert found.first.before >= 4 * 4096
    assert found.steady.peak.highest == pytest.approx(found.first.peak.highest, abs=SCALARS + 4 * 72)


def test_an_implementation_that_pytorch_lacks_is_refused() -> None:
    with pytest.raises(
        UsageError, match="--implementation fused: PyTorch's rmsprop has none; choose from: for-loop, fo"
    ):
        simulate(RECIPE, Setting(train=True), MemoryPlan("rmsprop", "fused"))


@pytest.mark.parametrize("optimizer", sorted({*NAMES} - {"none"}))
def test_every_optimizer_takes_its_step(optimizer: str) -> None:
    found = simulate(RECIPE, Setting(train=True), MemoryPlan(optimizer))
    state = found.steady.peak.held.get(Kind.OPTIMIZER_STATE, 0)
    assert (state > 0) == (optimizer != "sgd")


def test_a_model_of_ones_own_is_left_alone() -> None:
    model = Net()
    recipe = Recipe("net", lambda: copy_model(model), (InputSpec((32, 64)),), ready=model)
    with untouched(model):
        simulate(recipe, Setting(train=True), MemoryPlan("sgd"))


class Int8(Tensor):
    """A class that wraps what takes memory, as torchao's do: a byte for each value, and a scale for each row."""

    @staticmethod
    def __new__(cls, data: Tensor, scale: Tensor) -> "Int8":
        return Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device=data.device)  # type: ignore

    def __init__(self, data: Tensor, scale: Tensor) -> None:
        self.bytes, self.scale = data, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["bytes", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if operator in (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default):
            return Int8(operator(args[0].bytes), operator(args[0].scale, **(kwargs or {})))
        args = [x.bytes.to(x.scale.dtype) * x.scale if isinstance(x, Int8) else x for x in args]
        return operator(*args, **(kwargs or {}))


class Scaled(nn.Parameter):
    """Packed 4-bit values with their scales in an attribute, as bitsandbytes' are."""


class Adapter(nn.Module):
    """A frozen weight, as it is, wrapped or packed, beside two small ones that learn."""

    def __init__(self, kind: str, wide: int = 96) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(wide, 64), requires_grad=False)
        if kind == "wrapped":
            wrapped = Int8(torch.ones(wide, 64, dtype=torch.int8), torch.ones(wide, 1))
            self.weight = nn.Parameter(wrapped, requires_grad=False)
        if kind == "packed":
            self.weight = Scaled(torch.ones(wide, 32, dtype=torch.uint8), requires_grad=False)
            self.weight.scales = torch.ones(wide, 1)  # type: ignore[attr-defined]
        self.first, self.second = nn.Linear(64, 4, bias=False), nn.Linear(4, wide, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor = self.weight
        if isinstance(weight, Scaled):
            scales: Tensor = weight.scales  # type: ignore[attr-defined]
            weight = torch.stack((weight >> 4, weight & 15), -1).flatten(1).to(x.dtype) * scales.to(x.device)
        return nn.functional.linear(x, weight) + self.second(self.first(x))


BYTES = {"plain": 4 * 96 * 64, "wrapped": 96 * 64 + 4 * 96, "packed": 96 * 32 + 4 * 96}


@pytest.mark.parametrize("kind", BYTES)
def test_frozen_weights_take_what_stores_them_and_nothing_else(kind: str) -> None:
    """No gradient, no state, and only the activations that a part which learns needs; as measured."""
    build = partial(Adapter, kind)
    found = simulate(Recipe(kind, build, (InputSpec((32, 64)),)), Setting(train=True), MemoryPlan("adamw", "for-loop"))
    learns = 4 * (64 * 4 + 4 * 96)
    held = found.steady.peak.held
    assert held[Kind.PARAMETERS] == BYTES[kind] + learns and found.parameters[""] == BYTES[kind]
    assert held[Kind.OPTIMIZER_STATE] == 2 * learns + 2 * 4
    assert found.steady.peak.highest == pytest.approx(measured(build, (32, 64), "adamw")[1], abs=SCALARS)
