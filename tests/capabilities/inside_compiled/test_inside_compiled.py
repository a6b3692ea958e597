"""Recorded steps that see inside compiled models: eager mode's figures, the same training, the same compilations."""

from __future__ import annotations

import os
import signal
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._dynamo.config as config
import torch._dynamo.eval_frame as eval_frame
from observing import Seen, observed, observing, rows, skipped
from support import hooks_on, swept
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcli
from hookcli.errors import UsageError
from hookcli.hooks.torch_private import looked_programs
from hookcli.record.observe.recording_plan import RecordingPlan

pytestmark = pytest.mark.xdist_group("torch.compile")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.lin, self.act = nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.lin(self.norm(x)))


class Net(nn.Module):
    """Draws random numbers, and has buffers; counts its calls, raises or is interrupted on request."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(4, 8), nn.ModuleList([Block(), Block()])
        self.norm, self.drop, self.head = nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2)
        self.checkpointed, self.now, self.seen, self.count = checkpointed, "", [0], 0

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        x = self.stem(x) * scale
        if self.now:
            self.happens()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed and self.training else block(x)
        return self.head(self.drop(self.norm(x)))

    @torch.compiler.disable
    def happens(self) -> None:
        self.seen[0], self.count = self.seen[0] + 1, self.count + 1
        if self.now == "raises":
            raise ValueError("the program's own")
        if self.now == "interrupted":
            os.kill(os.getpid(), signal.SIGINT)


PARTS = {"", "stem", "norm", "drop", "head", "blocks.0", "blocks.1"}
PARTS |= {f"blocks.{number}.{name}" for number in (0, 1) for name in ("norm", "lin", "act")}


def compiled_as(how: str, model: Net, backend: Any, **settings: Any) -> nn.Module:
    compiled = partial(torch.compile, backend=backend, **settings)
    if how == "outer":
        return compiled(model)
    if how == "in place":
        model.compile(backend=backend, **settings)
    elif how == "forward":
        model.forward = compiled(model.forward)
    elif how == "parts":
        model.blocks[0] = compiled(model.blocks[0])
        model.blocks[1].compile(backend=backend, **settings)
    return model


class Backend:
    """Compiles to the graph itself; `own` are the shapes of the inputs that the program's own code was compiled for."""

    def __init__(self, move: float = 1.0, refuse: bool = False) -> None:
        self.own: list[str] = []
        self.looked = 0
        self.move, self.refuse = move, refuse

    def __call__(self, graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        if "hookcli" not in graph.print_readable(print_output=False):
            self.own.append(str(sorted(str(x.shape) for x in inputs if isinstance(x, Tensor))))
            return graph.forward
        self.looked += 1
        if self.refuse:
            raise RuntimeError("no program with looks")
        return lambda *given: [x * self.move if x.is_floating_point() else x for x in graph.forward(*given)]


SIZES = (4, 6, 6, 5)


def program(
    how: str = "outer",
    backend: Any = Backend,
    sizes: Sequence[int] = SIZES,
    at: str = "",
    evaluates: bool = False,
    checkpointed: bool = False,
    **settings: Any,
) -> Any:
    torch._dynamo.reset()
    backend = backend() if callable(backend) else backend
    model = Net(checkpointed)
    before = vars(model).get("_compiled_call_impl"), vars(model).get("forward")
    called = compiled_as(how, model, backend, **settings)
    placed = vars(model).get("_compiled_call_impl"), vars(model).get("forward")
    assert how in ("none", "outer", "parts") or placed != before
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    caught = []
    for number, size in enumerate(sizes):
        model.now = at if number == 3 or at == "counts" else ""
        optimizer.zero_grad()
        try:
            called(torch.randn(size, 4), scale=0.5).square().sum().backward()
            optimizer.step()
        except (ValueError, KeyboardInterrupt) as error:
            caught.append(str(type(error)))
        if evaluates:
            called.eval()
            with torch.no_grad():
                called(torch.randn(3, 4))
            called.train()
    model.now = ""
    return [model, model.seen, model.count, caught, getattr(backend, "own", None), config.skip_nnmodule_hook_guards]


def norms(model: Net, x: Tensor) -> tuple[dict[str, float], dict[str, float]]:
    """Norms of what modules return, and of its gradients, by hooks of the test's own."""
    values: dict[str, float] = {}
    grads: dict[str, float] = {}

    def see(fqn: str, _: object, args: object, output: Tensor) -> None:
        values[fqn] = float(output.detach().norm())
        output.register_hook(lambda grad: grads.update({fqn: float(grad.norm())}))

    handles = [module.register_forward_hook(partial(see, fqn)) for fqn, module in model.named_modules()]
    model(x, scale=0.5).square().sum().backward()
    for handle in handles:
        handle.remove()
    return values, grads


def inside(seen: Seen) -> list[str]:
    return [note for model in seen.ran.values() for note in model.notes if "inside" in note]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    before = eval_frame._callback_from_stance, config.skip_nnmodule_hook_guards, config.recompile_limit
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    yield
    signal.signal(signal.SIGINT, handler)
    assert (eval_frame._callback_from_stance, config.skip_nnmodule_hook_guards, config.recompile_limit) == before
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("how", "checkpointed"),
    [
        ("parts", False),
        *(swept(how, flag) for how in ("outer", "in place", "forward", "parts") for flag in (False, True)),
    ],
)
def test_modules_inside_have_the_figures_of_eager_mode_and_training_is_the_same(how: str, checkpointed: bool) -> None:
    if checkpointed and how not in ("outer", "parts"):
        return
    seen = observed(partial(program, how, "aot_eager", (4, 4), checkpointed=checkpointed), inside_compiled=True)
    first, _ = seen.recorded
    torch.manual_seed(0)
    values, grads = norms(Net(), torch.randn(4, 4))
    containers = {"blocks"}
    found = {fqn: row.stats.l2 for fqn, row in rows(first, "activations").items() if row.stats}
    assert found == {fqn: pytest.approx(value, rel=1e-4) for fqn, value in values.items()}
    assert set(found) == PARTS - containers and skipped(first, "activations").keys() <= containers
    found = {fqn: row.stats.l2 for fqn, row in rows(first, "grads", "output").items() if row.stats}
    assert found == {fqn: pytest.approx(value, rel=1e-4) for fqn, value in grads.items()}
    assert len(rows(first, "grads", "parameter")) == len(rows(first, "updates")) == 14
    (said,) = inside(seen)
    assert "by aot_eager: outputs and gradients bit-identical" in said
    meta = next(report.meta for report in first.reports if report.probe == "activations")
    assert meta["compiled"] in said


@pytest.mark.parametrize(
    ("how", "every", "sizes"),
    [
        ("in place", 1, (4, 6)),
        swept("in place", 2, SIZES),
        *(swept(how, 1, SIZES) for how in ("outer", "forward", "parts")),
    ],
)
def test_the_programs_own_code_is_compiled_as_without_hookcli(how: str, every: int, sizes: tuple[int, ...]) -> None:
    """For batches of several sizes, in training and evaluation; `observed` compares what was compiled, and when."""
    seen = observed(partial(program, how, sizes=sizes, evaluates=True), inside_compiled=True, every=every)
    assert len(seen.of()) == len(sizes) // every and len(seen.of(phase="no_grad")) > 0
    for recorded in seen.recorded:
        assert PARTS - {"blocks"} <= rows(recorded, "activations").keys()


@pytest.mark.sweep
def test_hookcli_s_programs_leave_room_for_the_program_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Static shapes reach torch.compile's limit; the program then runs uncompiled, as ever."""
    monkeypatch.setattr(config, "recompile_limit", 2)
    sizes = [2, 3, 4]
    seen = observed(partial(program, sizes=sizes, dynamic=False), inside_compiled=True)
    assert len(seen.of()) == len(sizes)
    assert {"head", "blocks.0.lin"} <= rows(seen.of()[-1], "activations").keys()


@pytest.mark.sweep
def test_what_a_model_counts_itself_is_not_counted_twice() -> None:
    seen = observed(partial(program, sizes=(4, 4), at="counts"), inside_compiled=True)
    assert PARTS - {"blocks"} == rows(seen.of()[-1], "activations").keys()


class Cache:
    """What a program hands to its model from call to call, as a cache of keys and values."""

    def __init__(self) -> None:
        self.layers: list[Any] = []
        self.total = torch.zeros(())


class Holding(nn.Module):
    """Adds to containers in its attributes and in its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.recent = nn.Linear(4, 4), deque([0], maxlen=5)
        self.counts: dict[str, Any] = {"by size": defaultdict(int), "all": [[0]]}

    def forward(self, x: Tensor, cache: Cache, given: list[int]) -> Tensor:
        self.happens(x, cache, given)
        return self.lin(x)

    @torch.compiler.disable
    def happens(self, x: Tensor, cache: Cache, given: list[int]) -> None:
        self.recent.append(self.recent[-1] + 1)
        self.counts["by size"][len(x)] += 1
        self.counts["all"][0][0] += 1
        cache.layers.append(len(cache.layers))
        cache.total += 1
        given.append(1)


@pytest.mark.sweep
def test_what_a_model_keeps_in_containers_of_its_own_and_of_its_arguments_is_as_without_hookcli() -> None:
    def runs() -> Any:
        torch._dynamo.reset()
        model, cache, given = Holding(), Cache(), [0]
        compiled = torch.compile(model, backend="eager")
        for size in (2, 2, 3):
            compiled(torch.randn(size, 4), cache, given).sum().backward()
        assert (len(given), len(cache.layers), int(cache.total), model.recent[-1]) == (4, 3, 3, 3)
        assert model.counts == {"by size": {2: 2, 3: 1}, "all": [[3]]}
        return model

    seen = observed(runs, inside_compiled=True)
    assert "tried on copies" in inside(seen)[0]
    assert all("lin" in rows(step, "activations") for step in seen.recorded)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("how", "at"),
    [("parts", "interrupted"), swept("outer", "raises"), swept("in place", "interrupted"), swept("parts", "raises")],
)
def test_a_forward_that_fails_leaves_nothing_behind(how: str, at: str) -> None:
    seen = observed(partial(program, how, "aot_eager", (4,) * 5, at=at), inside_compiled=True)
    assert [step.complete for step in seen.of()].count(False) == 1
    last = seen.of()[-1]
    assert PARTS - {"blocks"} == rows(last, "activations").keys() and last.complete


@pytest.mark.sweep
def test_a_program_with_looks_that_can_not_be_compiled_is_left_whole() -> None:
    made: list[Backend] = []

    def refusing() -> Backend:
        made.append(Backend(refuse=True))
        return made[-1]

    seen = observed(partial(program, "outer", refusing, (4, 4)), inside_compiled=True)
    assert [backend.looked for backend in made] == [0, 1]  # it is not tried again
    (said,) = inside(seen)
    assert "left whole" in said and "no program with looks" in said
    assert len(seen.of()) == 2 and set(rows(seen.recorded[-1], "activations")) == {""}
    assert "stem" in skipped(seen.recorded[-1], "activations")


@pytest.mark.sweep
def test_what_looks_move_is_said() -> None:
    with observing(inside_compiled=True) as seen:
        program("outer", partial(Backend, 1.5), SIZES[:1])
    (said,) = inside(seen)
    assert "looks move outputs by 5.0e-01, gradients of parameters by" in said


@pytest.mark.parametrize("how", ["none", "function"])
def test_where_nothing_can_be_seen_inside_that_is_said(how: str) -> None:
    def runs() -> Any:
        frames = torch._dynamo.convert_frame.FRAME_COUNTER
        torch._dynamo.reset()
        torch._dynamo.convert_frame.FRAME_COUNTER = frames  # which a program that compiles does not put back
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(x: Tensor) -> Tensor:
            return model(x).square().sum()

        loss_of = torch.compile(loss, backend="eager") if how == "function" else loss
        for _ in range(2):
            loss_of(torch.randn(4, 4)).backward()
            optimizer.step()
        assert (frames < torch._dynamo.convert_frame.FRAME_COUNTER) == (how == "function")
        return model

    seen = observed(runs, inside_compiled=True)
    if how == "none":
        assert [note for note in seen.notes if "no recorded model is compiled" in note]
    else:
        assert not seen.notes
        (said,) = inside(seen)
        assert "compile the model, not the function around it" in said


def test_a_limit_of_recompilations_that_the_program_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """In torch 2.11, where hookcli's programs count for the limit, which then has room for them."""
    monkeypatch.setattr(looked_programs, "_apart", lambda: None)
    monkeypatch.setattr(config, "recompile_limit", before := config.recompile_limit)
    with looked_programs.room_for_own_programs(), looked_programs.own_programs_within():
        assert config.recompile_limit == before + 1
    assert config.recompile_limit == before
    with looked_programs.room_for_own_programs():
        config.recompile_limit = 64
        with looked_programs.own_programs_within():
            assert config.recompile_limit == 65
        assert config.recompile_limit == 64
    assert config.recompile_limit == 64


def test_operators_are_refused() -> None:
    with pytest.raises(UsageError, match="--ops and --inside-compiled"):
        RecordingPlan(ops="functions", of_parts={"inside_compiled": True})


@pytest.mark.parametrize("how", ["outer", swept("in place")])
def test_watch_looks_inside_around_a_step_and_a_training(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what was compiled, and has run, before."""
    monkeypatch.chdir(tmp_path)
    model = Net()
    called, x = compiled_as(how, model, "eager"), torch.randn(4, 4)
    call = vars(model).get("_compiled_call_impl")
    called(x, scale=0.5)
    torch.manual_seed(0)
    with hookcli.watch(called, probes=["activations", "grads"], inside_compiled=True) as seen:
        called(x, scale=0.5).square().sum().backward()
    torch.manual_seed(0)
    values, _ = norms(deepcopy(model), x)
    found = {row.fqn: row.stats.l2 for row in seen.reports()[0].rows if row.stats}
    assert found == {fqn: pytest.approx(value, rel=1e-4) for fqn, value in values.items()}
    with hookcli.watch(called, every=1, output="net.jsonl", inside_compiled=True) as recording:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        called(x, scale=0.5).square().sum().backward()
        optimizer.step()
    assert {row.fqn for row in recording.reports()[0].rows} == PARTS - {"blocks"}
    assert vars(model).get("_compiled_call_impl") is call and not any(hooks_on(model).values())
    with (
        pytest.raises(UsageError, match="inside_compiled and probe shapes"),
        hookcli.watch(called, probes=["shapes"], inside_compiled=True),
    ):
        pass
