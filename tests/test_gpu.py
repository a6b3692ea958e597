"""On a GPU: the same figures, and nothing waits for the device inside a hook."""

from __future__ import annotations

import copy

import pytest
import torch
import torchvision
from support import assert_stats, hooks_on
from tensors.kinds import kinds

from hookcli.engine.capture import capture
from hookcli.engine.checking import check
from hookcli.hooks.clock import timer_for
from hookcli.hooks.session import HookSession
from hookcli.probes.activations import ActivationsProbe
from hookcli.probes.grads import GradsProbe
from hookcli.probes.inventory import InventoryProbe
from hookcli.probes.shared.call_times import CallTimer
from hookcli.record.watch import watch
from hookcli.tensors import distance, torch_private
from hookcli.tensors.devices import launch
from hookcli.tensors.stats import measure, resolve

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torchvision.models.resnet18(weights=None).double().eval()


PROBES = {
    "activations": lambda: "activations",
    "histograms": lambda: ActivationsProbe(hist=True),
    "inputs": lambda: "inputs",
    "parameters": lambda: GradsProbe("parameters"),
    "outputs": lambda: GradsProbe("outputs"),
    "inputs' grads": lambda: GradsProbe("inputs"),
}


@pytest.mark.parametrize("name", PROBES)
def test_figures_are_those_of_the_cpu(model: torch.nn.Module, name: str) -> None:
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    on_cpu = capture(copy.deepcopy(model), x, [PROBES[name]()], loss="cross-entropy")[0]
    on_gpu = capture(model.cuda(), x.cuda(), [PROBES[name]()], loss="cross-entropy")[0]
    assert [r.fqn for r in on_gpu.rows] == [r.fqn for r in on_cpu.rows] and on_gpu.meta["device"] == "cuda:0"
    for gpu, cpu in zip(on_gpu.rows, on_cpu.rows, strict=True):
        assert cpu.stats is not None
        assert_stats(gpu.stats, cpu.stats)
        assert (gpu.stats.hist is None) is (cpu.stats.hist is None) is (name != "histograms")
    assert sum(hooks_on(model).values()) == 0


@pytest.fixture(params=["kernels", "operators"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By Triton's kernels, and as where there is no Triton."""
    monkeypatch.setattr(launch, "_given_up", request.param == "operators")
    return request.param


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_kind_of_tensor(way: str) -> None:
    """Small ones, which one program reads, and ones for many programs."""
    for size in (300, 3_000_000):
        there = {name: (x, x.cuda()) for name, x in kinds(size)}
        taken = [(name, x, measure(y, hist=True), distance.compare(y, y.clone())) for name, (x, y) in there.items()]
        assert launch._given_up is (way == "operators"), torch_private.notes()
        for (name, x, _, _), found in zip(taken, resolve([pending for *_, pending, _ in taken]), strict=True):
            [expected] = resolve([measure(x, hist=True)])
            assert_stats(found, expected)
            assert expected.hist and (found.hist == expected.hist.with_linear() or "1e-310" in name), name
        apart = [pair for *_, pair in taken if pair is not None]
        assert all(found.max_abs == 0 for found in distance.resolve(apart))


def test_nothing_synchronizes_as_tensors_are_measured(way: str) -> None:
    tensors = [x.cuda() for _, x in kinds(3000)]

    def work() -> None:
        for x in tensors:
            measure(x, hist=True)
            distance.compare(x, x)

    work()  # kernels that compile, and libraries that load, may wait
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_figures_made_on_a_stream_of_the_programs_own(model: torch.nn.Module) -> None:
    x = torch.randn(4, 3, 128, 128, dtype=torch.float64)
    [expected] = capture(copy.deepcopy(model), x, ["activations"])
    model, x, stream = model.cuda(), x.cuda(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with watch(model, ["activations"]) as seen, torch.cuda.stream(stream), torch.no_grad():
        torch.cuda._sleep(10**9)  # about half a second, after which there are figures to read
        model(x)
    for gpu, cpu in zip(seen.reports()[0].rows, expected.rows, strict=True):
        assert cpu.stats is not None
        assert_stats(gpu.stats, cpu.stats)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_tensor_on_another_device_than_the_current_one() -> None:
    for x in (torch.randn(100, device="cuda:1"), torch.randn(10**6, device="cuda:1")):
        [found] = resolve([measure(x, hist=True)])
        assert_stats(found, resolve([measure(x.cpu())])[0])
        assert torch.cuda.current_device() == 0


def test_memory_hardly_grows(model: torch.nn.Module) -> None:
    """A peak 1.02 times as high, and nothing that is left when the reports are made."""
    model, x = model.float().cuda(), torch.randn(32, 3, 224, 224, device="cuda")

    def peak(*probes: str) -> int:
        torch.cuda.reset_peak_memory_stats()
        with torch.no_grad():
            if probes:
                with watch(model, list(probes)) as seen:
                    model(x)
                seen.reports()
            else:
                model(x)
        return torch.cuda.max_memory_allocated()

    peak()
    before = torch.cuda.memory_allocated()
    assert peak("activations") <= 1.02 * peak()
    assert torch.cuda.memory_allocated() == before


def test_a_cuda_graph_is_left_alone(model: torch.nn.Module) -> None:
    model, x = model.float().cuda(), torch.randn(2, 3, 64, 64, device="cuda")
    with torch.no_grad():
        model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        graph.replay()
        expected = y.clone()
        with watch(model, ["activations"]) as seen:
            y.zero_()
            graph.replay()
    assert torch.equal(y, expected) and not seen.reports()[0].rows


def test_histograms_where_a_program_asks_for_deterministic_algorithms() -> None:
    x = torch.randn(5_000_000)
    torch.use_deterministic_algorithms(True)
    try:
        pending = measure(x.cuda(), hist=True)
    finally:
        torch.use_deterministic_algorithms(False)
    [found], [expected] = resolve([pending]), resolve([measure(x, hist=True)])
    assert expected.hist and found.hist == expected.hist.with_linear()


WATCHED = PROBES | {"inventory": lambda: InventoryProbe(backward=True, bits=True)}


@pytest.mark.parametrize("name", WATCHED)
def test_nothing_synchronizes_inside_a_hook(model: torch.nn.Module, name: str) -> None:
    model, x = model.float().cuda(), torch.randn(2, 3, 64, 64, device="cuda")
    model(x).sum().backward()  # libraries that load on first use may wait
    torch.cuda.synchronize()
    with watch(model, [WATCHED[name]()]) as seen:
        torch.cuda.set_sync_debug_mode("error")
        try:
            model(x).sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert seen.reports()[0].rows


def test_a_check_on_the_gpu_finds_what_it_finds_on_the_cpu(model: torch.nn.Module) -> None:
    model, x = model.float().train(), torch.randn(2, 3, 64, 64)
    model.unused = torch.nn.Linear(2, 2)
    found = [
        check(m, i, loss="cross-entropy", split_batch=True).findings for m, i in ((model, x), (model.cuda(), x.cuda()))
    ]
    assert [f.check for f in found[0]] == [f.check for f in found[1]] == ["HK006", "HK008"]


def test_times_are_those_of_the_device(model: torch.nn.Module) -> None:
    model = model.float().cuda()
    x = torch.randn(8, 3, 224, 224, device="cuda")
    report = capture(model.train(), x, "activations", time=True)[0]
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    model(x)
    ended.record()
    torch.cuda.synchronize()
    plain = 1000 * began.elapsed_time(ended)
    assert 0.2 * plain < report.totals["forward_us"] < 20 * plain and report.totals["backward_us"] > 0
    alone = sum(row["forward_self_us"] for row in report.rows)
    assert alone == pytest.approx(report.totals["forward_us"], rel=0.05)
    assert "by events on cuda:0" in report.meta["notes"][-1]


def test_no_hook_that_times_waits_for_the_device(model: torch.nn.Module) -> None:
    x = torch.randn(2, 3, 64, 64, device="cuda")
    session = HookSession(model.float().cuda(), ops="functions")
    with session:
        timer = CallTimer(session, timer_for(x.device, session.clock), backward=True)
        loss = model(x).sum()  # once before, since kernels are loaded
        torch.cuda.set_sync_debug_mode("error")
        try:
            loss = model(x).sum()
            session.backward_begins([loss])
            loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        own = timer.own()
    assert own["conv1", 1].forward and own["conv1", 1].backward
