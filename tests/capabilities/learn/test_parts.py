"""Batches, blocks, modes, graphs and outputs of trainings, each fault beside correct trainings that look like it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from observing import Seen, observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from hookcli.capabilities.learn.judging.checks import (
    FrozenBlock,
    GraphsKept,
    OutputAlike,
    SameBatch,
    is_lasting,
    learned,
    untrained,
)
from hookcli.capabilities.learn.judging.headline import faults
from hookcli.capabilities.learn.lines import EVAL, LINES, UNHELD, UNREACHED, Learning
from hookcli.checks.measurements import Measurements
from hookcli.table.losses import LossCourse

Program = Callable[[], Any]
STEPS = 8


def measured(seen: Seen) -> Measurements:
    losses = {step: loss for of in seen.every_loss.values() for step, loss in of.items() if loss is not None}
    lines = {kind.kind: [line for line in seen.of_parts if isinstance(line, kind)] for kind in LINES}
    return Measurements(losses=LossCourse.of(losses), every_loss=losses, lines=lines)


def said(check: Any, program: Program, **plan: Any) -> list[tuple[str, str]]:
    return [(one.severity, one.message) for one in check().judge(measured(observed(program, **plan)))]


def net(*, bias: float = 0.0, zero_head: bool = False) -> nn.Sequential:
    body, head = nn.Linear(6, 8), nn.Linear(8, 4)
    with torch.no_grad():
        body.bias += bias
        head.weight *= not zero_head
    return nn.Sequential(body, nn.ReLU(), head)


def train(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], lr: float = 0.05) -> nn.Module:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def random_batches(steps: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(steps):
        yield torch.randn(8, 6), torch.randint(4, (8,))


# Batches: each program's data, and how it takes batches of it.


def drawn(seed: Callable[[int], int]) -> nn.Module:
    """Rows of a larger tensor, drawn in each step."""
    images, labels = torch.randn(64, 6), torch.randint(4, (64,))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(STEPS):
            rows = torch.randint(64, (8,), generator=torch.Generator().manual_seed(seed(step)))
            yield images[rows], labels[rows]

    return train(net(), batches())


def loaded(size: int, *, anew: bool, shuffle: bool = False) -> nn.Module:
    """Batches of a DataLoader, whose iterator is made anew for each step, or when it is at its end."""
    loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.randint(4, (64,))), size, shuffle=shuffle)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        if anew:
            yield from (next(iter(loader)) for _ in range(STEPS))
        else:
            while True:
                yield from loader

    return train(net(), (batch for _, batch in zip(range(STEPS), batches(), strict=False)))


def one_batch_on_purpose(change: Callable[[Tensor], Tensor]) -> nn.Module:
    images, labels = torch.randn(64, 6), torch.randint(4, (64,))
    x, y = images[:8].clone(), labels[:8]
    return train(net(), ((change(x), y) for _ in range(STEPS)))


def train_split() -> nn.Module:
    images, labels = torch.randn(64, 6), torch.randint(4, (64,))
    return train(net(), ((images[:48], labels[:48]) for _ in range(STEPS)))


def test_the_same_rows_in_each_step_are_found() -> None:
    text = f"each of {STEPS} recorded steps saw the same batch: 8 of the 64 rows of a tensor"
    assert said(SameBatch, lambda: drawn(lambda step: 0)) == [("warning", text)]
    assert not said(SameBatch, lambda: drawn(lambda step: step))


def test_the_first_batch_of_a_loader_in_each_step_is_found() -> None:
    text = f"each of {STEPS} recorded steps saw the same batch: the first of the 8 of a DataLoader"
    assert said(SameBatch, lambda: loaded(8, anew=True)) == [("warning", text)]
    assert not said(SameBatch, lambda: loaded(8, anew=True, shuffle=True))
    assert not said(SameBatch, lambda: loaded(8, anew=False))


@pytest.mark.parametrize(
    "change", [lambda x: x, swept(lambda x: x[:]), lambda x: x + 0.0], ids=["kept", "view", "copied"]
)
def test_one_batch_on_purpose_is_no_fault(change: Callable[[Tensor], Tensor]) -> None:
    assert "warning" not in dict(said(SameBatch, partial(one_batch_on_purpose, change)))


def indexed(*, as_mask: bool) -> nn.Module:
    """The same rows of a larger tensor in each step, by an index or a mask that is kept."""
    images, labels, mask = torch.randn(64, 6), torch.randint(4, (64,)), torch.arange(64) % 7 == 0
    index = mask if as_mask else mask.nonzero()[:, 0]
    return train(net(), ((images[index], labels[index]) for _ in range(STEPS)))


@pytest.mark.parametrize("as_mask", [False, swept(True)])
def test_the_rows_of_an_index_that_is_kept_are_the_batch_on_purpose(as_mask: bool) -> None:
    assert dict(said(SameBatch, partial(indexed, as_mask=as_mask))).keys() == {"info"}


@pytest.mark.sweep
@pytest.mark.parametrize(
    "program", [train_split, swept(partial(loaded, 64, anew=False)), partial(loaded, 64, anew=True)]
)
def test_full_batch_training_is_no_fault(program: Program) -> None:
    assert "warning" not in dict(said(SameBatch, program))


# Blocks.


class Blocks(nn.Module):
    """`frozen`: the numbers of the blocks that are not trained."""

    def __init__(self, frozen: list[int], number: int = 4) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(number))
        for block in frozen:
            self.blocks[block].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x)
        return scores


class Adapted(nn.Module):
    """A frozen layer with a trained adapter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.base(x) + self.up(self.down(x))
        return adapted


def test_a_frozen_block_between_trained_ones_is_found() -> None:
    text = "blocks.1 is frozen (requires_grad=False), between blocks.0 and blocks.2, which are trained"
    assert said(FrozenBlock, lambda: train(Blocks([1]), random_batches())) == [("warning", text)]


@pytest.mark.sweep
@pytest.mark.parametrize(
    "frozen", [swept([]), swept([0]), [0, 1], swept([3]), swept([1, 2]), swept([0, 1, 2, 3])], ids=str
)
def test_blocks_that_are_frozen_on_purpose_are_not_accused(frozen: list[int]) -> None:
    assert not said(FrozenBlock, lambda: train(Blocks(frozen), random_batches()))


@pytest.mark.sweep
def test_adapters_are_not_accused() -> None:
    def program() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 8), *(Adapted() for _ in range(3)), nn.Linear(8, 4))
        return train(model, random_batches())

    assert not said(FrozenBlock, program)


# What the first line says of modes, gradients and optimizers.


def first_line(program: Program, **plan: Any) -> str:
    return next(faults(measured(observed(program, **plan))), "")


def normalized(*, eval_from: int = STEPS, statistics: bool = False, frozen: bool = False) -> nn.Module:
    """A model that is in eval mode from some step on; with `statistics`, its norm alone, which has some already."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    if statistics:
        model(torch.randn(64, 6))
        model[1].eval()
    model[1].requires_grad_(not frozen)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step, batch in enumerate(random_batches()):
            if step == eval_from:
                model.eval()
            yield batch

    return train(model, batches())


def validated(*, back: bool) -> nn.Module:
    """A training that is validated every fourth step, and goes on in training mode, or not."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 4))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step, batch in enumerate(random_batches()):
            yield batch
            if step % 4 == 3:
                model.eval()
                with torch.no_grad():
                    model(torch.randn(8, 6))
                model.train(back)

    return train(model, batches())


def test_norms_in_eval_mode_that_have_never_seen_a_batch_are_said() -> None:
    assert first_line(lambda: normalized(eval_from=0)).startswith("1 (BatchNorm1d) is in eval mode, with statistics")


def test_a_model_that_stays_in_eval_mode_after_validation_is_said() -> None:
    assert first_line(lambda: validated(back=False)).startswith("the model is in eval mode since step 4, and 1 module")
    assert not first_line(lambda: validated(back=True))


def explained(model: nn.Module) -> nn.Module:
    """The model, after backward passes in eval mode that no optimizer takes, as for a map of what matters."""
    model.eval()
    for x, y in random_batches():
        F.cross_entropy(model(x), y).backward()
    return model


def test_eval_mode_is_said_of_steps_that_are_not_recorded() -> None:
    """Only step 0 is recorded: a version counter of the weights tells that the later ones changed them."""
    said = first_line(lambda: normalized(eval_from=2), every=100)
    assert said.startswith("the model is in eval mode since one of the steps after 0, and 1 module in it")
    assert not first_line(lambda: explained(normalized()), every=100)
    assert not first_line(lambda: explained(normalized()))


@pytest.mark.parametrize("frozen", [swept(True), False])
def test_norms_that_keep_their_statistics_on_purpose_are_not(frozen: bool) -> None:
    assert not first_line(lambda: normalized(statistics=True, frozen=frozen))


class Cut(nn.Module):
    """`cut`: the trunk gets no gradient. `pooled`: a small part after it makes an output that nothing uses."""

    def __init__(self, *, cut: bool, pooled: bool = False) -> None:
        super().__init__()
        self.cut, self.pooled = cut, pooled
        self.trunk, self.pool, self.head = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x)
        if self.pooled:
            self.pool(x)
        scores: Tensor = self.head(x.detach() if self.cut else x)
        return scores


@pytest.mark.sweep
def test_a_trunk_without_a_gradient_is_said() -> None:
    said = first_line(lambda: train(Cut(cut=True), random_batches()))
    assert said.startswith("no gradient reaches trunk (2 of the 6 parameters of the optimizer)")
    assert not first_line(lambda: train(Cut(cut=False), random_batches()))
    assert not first_line(lambda: train(Cut(cut=False, pooled=True), random_batches()))


def with_another_head(*, late: bool) -> nn.Module:
    model = net()
    model[2] = model[2] if late else nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    model[2] = nn.Linear(8, 4) if late else model[2]
    for x, y in random_batches():
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def test_a_head_that_was_replaced_after_the_optimizer_was_made_is_said() -> None:
    assert first_line(lambda: with_another_head(late=True)).startswith(
        "no optimizer has the parameters of 2: gradients"
    )
    assert not first_line(lambda: with_another_head(late=False))
    assert first_line(lambda: with_another_head(late=True), probes=["activations"]).startswith("no optimizer has the")


def two_nets(other: str, *, of_both: bool = False) -> list[nn.Module]:
    """A maker and its critic, whose optimizer is made first; then one of the `other`, or of both."""
    nets = {"maker": nn.Linear(6, 8), "critic": nn.Linear(8, 4)}
    held = [nets["critic"], nets[other]]
    parameters = [[*one.parameters(), *(nets["maker"].parameters() if of_both else ())] for one in held]
    optimizers = [torch.optim.SGD(each, 0.05) for each in parameters]
    for x, y in random_batches():
        for optimizer in optimizers:
            for one in nets.values():
                one.zero_grad()
            F.cross_entropy(nets["critic"](nets["maker"](x)), y).backward()
            optimizer.step()
    return [*nets.values()]


def test_two_optimizers_with_the_parameters_of_one_net_are_said() -> None:
    said = "no optimizer has the parameters of weight, bias: gradients arrive, but nothing moves them; "
    assert first_line(partial(two_nets, "critic")) == f"{said}two optimizers (SGD) have the same 2 other parameters"
    assert not first_line(partial(two_nets, "maker"))
    assert not first_line(partial(two_nets, "critic", of_both=True))


def held_in_part(held: str, *, frozen: int = 0, by_hand: str = "") -> nn.Module:
    """A training whose optimizer has these layers alone; the others are frozen until a step, or moved by hand."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4))
    others = [one for place, one in model.named_children() if place not in held]
    optimizer = torch.optim.SGD([p for place in held for p in model[int(place)].parameters()], 0.05)
    for step, (x, y) in enumerate(random_batches()):
        for one in others:
            one.requires_grad_(step >= frozen)
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for p in (p for place in by_hand for p in model[int(place)].parameters()):
                p -= 0.05 * p.grad
    return model


@pytest.mark.sweep
@pytest.mark.parametrize(("held", "missed"), [("02", "1.weight, 1.bias"), swept("01", "2.weight, 2.bias")])
def test_parameters_that_an_optimizer_has_missed_are_said(held: str, missed: str) -> None:
    said = f"no optimizer has {missed} (2 of the 6 parameters that get a gradient): gradients arrive, but nothing"
    assert first_line(partial(held_in_part, held)).startswith(said)
    assert not first_line(partial(held_in_part, held, by_hand=missed[0]))


def test_a_head_alone_may_be_trained_on_purpose_but_not_what_was_unfrozen_later() -> None:
    assert not first_line(partial(held_in_part, "2"))
    assert not first_line(partial(held_in_part, "012", frozen=4))
    said = first_line(partial(held_in_part, "2", frozen=4))
    assert said.startswith("no optimizer has 0.weight, 0.bias, 1.weight, 1.bias (4 of the 6 parameters")
    assert said.endswith("nothing moves them, and they were unfrozen later")


def without_steps(steps: int) -> nn.Module:
    """Backward passes, and an optimizer that makes its first step after so many."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step, (x, y) in enumerate(random_batches()):
        F.cross_entropy(model(x), y).backward()
        if step >= steps:
            optimizer.step()
            optimizer.zero_grad()
    return model


@pytest.mark.sweep
def test_an_optimizer_that_makes_no_step_is_said() -> None:
    text = f"SGD made no step after any of {STEPS} backward passes: nothing was trained"
    assert first_line(partial(without_steps, STEPS)) == text
    assert not first_line(partial(without_steps, 6)) and not first_line(partial(without_steps, 0))


def test_outputs_and_targets_that_are_broadcast_are_seen_in_the_graph() -> None:
    def program(shape: tuple[int, ...]) -> None:
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(8, 6)), torch.arange(8.0).reshape(shape)).backward()
            optimizer.step()

    shapes: dict[tuple[int, ...], str] = {(8,): "8x8", (8, 1): ""}
    for shape, broadcast in shapes.items():
        lines = learned(measured(observed(partial(program, shape))).lines)
        assert {line.broadcast for line in lines} == {broadcast}
        assert {line.spread for line in lines} == {torch.arange(8.0).var(unbiased=False).item()}


@pytest.mark.sweep
def test_labels_that_are_all_one_are_counted() -> None:
    def program(labels: int) -> nn.Module:
        return train(net(), ((torch.randn(8, 6), torch.randint(labels, (8,)) + 1) for _ in range(STEPS)))

    for labels, counted in ((1, [*range(1, STEPS + 1)]), (2, [0] * STEPS)):
        lines = learned(measured(observed(partial(program, labels))).lines)
        assert [line.one_label for line in lines] == counted


@pytest.mark.sweep
def test_lines_of_healthy_trainings_name_nothing() -> None:
    lines = measured(observed(lambda: train(net(), random_batches()))).lines
    assert not any(untrained(lines, why) for why in (EVAL, UNHELD, UNREACHED))


# Graphs.


def summed(keep: Callable[[Tensor, Tensor], object]) -> list[object]:
    """What a program keeps of each step's loss and output."""
    model, kept = net(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    total: Any = 0.0
    for x, y in random_batches(12):
        optimizer.zero_grad()
        output = model(x)
        loss = F.cross_entropy(output, y)
        loss.backward()
        optimizer.step()
        made = keep(loss, output)
        total = total + made if isinstance(made, (float, Tensor)) and loss is made else total
        kept.append(made)
    return [float(torch.as_tensor(total).detach())]


@pytest.mark.sweep
@pytest.mark.parametrize("keep", [lambda loss, out: loss, lambda loss, out: [out]], ids=["losses", "outputs"])
def test_graphs_that_stay_are_found(keep: Callable[[Tensor, Tensor], object]) -> None:
    ((severity, text),) = said(GraphsKept, partial(summed, keep))
    assert severity == "warning" and "all 10 recorded steps before the last two" in text


@pytest.mark.sweep
@pytest.mark.parametrize(
    "keep", [lambda loss, out: loss.item(), swept(lambda loss, out: loss.detach()), lambda loss, out: [out.detach()]]
)
def test_numbers_and_detached_tensors_keep_no_graph(keep: Callable[[Tensor, Tensor], object]) -> None:
    assert not said(GraphsKept, partial(summed, keep))


# Outputs.


def test_an_output_that_does_not_depend_on_the_input_is_found() -> None:
    ((severity, text),) = said(OutputAlike, lambda: train(net(bias=-100.0), random_batches(), lr=1e-3))
    assert severity == "warning" and text.endswith(f"in each of the last {STEPS} recorded steps")


@pytest.mark.parametrize(
    ("steps", "lasting"),
    [([(8, 1), (9, 2)], False), ([(8, 1), (80, 2)], True), ([(8, 2), (9, 3)], True), ([(8, 0), (80, 1)], False)],
)
def test_outputs_are_alike_in_three_steps_or_in_two_that_are_far_apart(
    steps: list[tuple[int, int]], lasting: bool
) -> None:
    assert is_lasting([Learning("Net", step, alike=alike) for step, alike in steps]) is lasting


@pytest.mark.sweep
@pytest.mark.parametrize("zero_head", [swept(False), True])
def test_outputs_that_do_are_not_accused(zero_head: bool) -> None:
    assert not said(OutputAlike, lambda: train(net(zero_head=zero_head), random_batches()))


@pytest.mark.sweep
def test_rows_of_the_input_that_are_alike_tell_nothing() -> None:
    def program() -> nn.Module:
        return train(net(), ((torch.ones(8, 6), torch.randint(4, (8,))) for _ in range(STEPS)))

    assert not said(OutputAlike, program)


@pytest.mark.parametrize(
    ("spread", "normalized", "collapsed"), [(1e-3, True, True), (0.5, True, False), (1e-3, False, False)]
)
def test_embeddings_that_have_collapsed(spread: float, normalized: bool, collapsed: bool) -> None:
    """All next to one direction; numbers of another norm may be next to a mean on purpose, as years are."""

    class Embeds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 16)
            nn.init.ones_(self.linear.bias)
            with torch.no_grad():
                self.linear.weight.mul_(spread)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.linear(x)
            return F.normalize(outputs, dim=1) if normalized else outputs

    def program() -> nn.Module:
        model = Embeds()
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        for x, _ in random_batches():
            optimizer.zero_grad()
            outputs = model(x)
            (outputs * outputs.roll(1, 0)).sum(1).mean().backward()
            optimizer.step()
        return model

    texts = said(OutputAlike, program)
    assert len(texts) == collapsed
    assert all("it is next to the same (embeddings of norm 1 that differ by 1% at most)" in text for _, text in texts)
