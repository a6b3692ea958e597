"""Tries of looks inside compiled models take nothing of the program's: graphs, arguments, threads, prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

import pytest
import torch
import torch._dynamo
from observing import observed, rows
from support import swept
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.xdist_group("torch.compile")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def trained(model: nn.Module, called: Callable[[int], Tensor], *others: nn.Module, steps: int = 3) -> list[Any]:
    optimizer = torch.optim.SGD([p for one in (model, *others) for p in one.parameters()], lr=0.1)
    for number in range(steps):
        optimizer.zero_grad()
        called(number).square().mean().backward()
        optimizer.step()
    return [model, *others]


class Prompted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.prompts: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x) * self.prompts[0] * self.prompt


@pytest.mark.sweep
def test_a_graph_that_the_model_keeps_is_not_freed() -> None:
    def program() -> list[Any]:
        encoder, model = nn.Linear(4, 4), Prompted()
        compiled = torch.compile(model, backend="eager")

        def call(number: int) -> Tensor:
            model.prompt = encoder(torch.ones(4)).exp()
            model.prompts[:] = [model.prompt + 1]
            return compiled(torch.ones(2, 4))

        return trained(model, call, encoder)

    seen = observed(program, every=1, inside_compiled=True)
    assert "lin" in rows(seen.of()[-1], "activations")


@pytest.mark.parametrize("under", [*map(swept, ("checkpoint", "hooks"))])
def test_the_programs_hooks_on_saved_tensors_see_its_own_forwards_alone(under: str) -> None:
    def forwards(**how: Any) -> tuple[list[int], Any]:
        counts: list[int] = []

        def pack(x: Tensor) -> Tensor:
            counts[-1] += 1
            return x

        def program() -> list[Any]:
            torch._dynamo.reset()
            del counts[:]
            model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
            compiled = torch.compile(model, backend="eager")

            def call(number: int) -> Tensor:
                counts.append(0)
                x = torch.ones(2, 4) + number
                if under == "checkpoint":  # which raises in backward where it counts others
                    return checkpoint(compiled, x, use_reentrant=False)  # type: ignore[no-any-return]
                with saved_tensors_hooks(pack, lambda kept: kept):
                    return compiled(x)  # type: ignore[no-any-return]

            return trained(model, call)

        seen = observed(program, **how) if how else program()
        return counts, seen

    alone, _ = forwards()
    counts, seen = forwards(every=1, inside_compiled=True)
    assert counts == alone and len(counts) == 3 and all(counts) == (under == "hooks")
    assert {"0", "1", "2"} <= set(rows(seen.of()[-1], "activations"))


class Taking(nn.Module):
    """Uses up what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.inner = torch.compile(nn.Linear(4, 4), backend="eager")

    def forward(self, batch: Any) -> Tensor:
        x = next(batch) if hasattr(batch, "__next__") else batch.pop()
        return self.inner(self.lin(x))


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [swept("list"), "iterator", swept("generator")])
def test_arguments_are_the_programs(kind: str) -> None:
    def program() -> list[Any]:
        model = Taking()

        def call(number: int) -> Tensor:
            given = [torch.ones(2, 4), torch.zeros(2, 4) + number]
            makes = {"list": list, "iterator": iter, "generator": lambda given: (x for x in given)}
            batch = makes[kind](given)
            output: Tensor = model(batch)
            assert len(list(batch)) == 1
            return output

        return trained(model, call)

    seen = observed(program, every=1, inside_compiled=True)
    whole = [note for ran in seen.ran.values() for note in ran.notes if "left whole" in note]
    assert bool(whole) == (kind == "generator")


class Parallel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (torch.compile(nn.Linear(4, 4), backend="eager") for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(lambda part: part(x), (self.a, self.b)))  # type: ignore[return-value]


def test_a_forward_that_waits_for_threads_of_its_own_ends() -> None:
    def program() -> list[Any]:
        model = Parallel()
        return trained(model, lambda number: model(torch.ones(2, 4)))

    observed(program, every=1, inside_compiled=True)


def test_where_the_program_refuses_to_compile_nothing_is_compiled() -> None:
    def program() -> list[Any]:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        compiled = torch.compile(model, backend="eager")

        def call(number: int) -> Tensor:
            with torch.compiler.set_stance("fail_on_recompile" if number > 2 else "default"):
                output: Tensor = compiled(torch.ones((8, 3, 5, 8, 7)[number], 4))
            return output

        return trained(model, call, steps=5)

    seen = observed(program, every=1, inside_compiled=True)
    assert ["0" in rows(step, "activations") for step in seen.of()] == [True, True, True, False, False]


class Printing(nn.Module):
    """Prints, and waits meanwhile for another thread that does."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.compile(nn.Linear(4, 4), backend="eager")
        self.asked, self.done = Event(), Event()

    def forward(self, x: Tensor) -> Tensor:
        print("forward")
        self.asked.set()
        assert self.done.wait(60)
        self.done.clear()
        return self.lin(x)


@pytest.mark.sweep
def test_prints_of_other_threads_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> list[Any]:
        model, over = Printing(), Event()

        def speak() -> None:
            while not over.is_set():
                if model.asked.wait(0.1):
                    model.asked.clear()
                    print("other")
                    model.done.set()

        thread = Thread(target=speak)
        thread.start()
        try:
            trained(model, lambda number: model(torch.ones(2, 4)))
        finally:
            over.set()
            thread.join()
        return [model.lin.weight]

    observed(program, every=1, inside_compiled=True)
    lines = capsys.readouterr().out.split()
    assert lines.count("forward") == 6 and lines.count("other") == 8  # without hookcli, with it, and a try's two runs
