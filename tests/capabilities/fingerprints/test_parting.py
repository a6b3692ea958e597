"""Two runs that part in one thing, at a known step, and runs that go on where another one was."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookcli.capabilities.fingerprints.lines import Fingerprint, Values
from hookcli.capabilities.fingerprints.parting import TwoRuns, prints_of, recorded_again, values_of
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import Header

STEPS, AT = 8, 4
SAME = "are still the same, bit for bit"
Change = Callable[["Training"], object]


class Training:
    """A model with Dropout and BatchNorm, Adam, and batches of a generator of its own."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.generator = torch.Generator().manual_seed(1)
        self.scale = 1.0

    def batch(self) -> tuple[Tensor, Tensor]:
        x = torch.randn(16, 6, generator=self.generator)
        return x, x[:, :3].argmax(1)

    def step(self) -> None:
        x, y = self.batch()
        self.optimizer.zero_grad()
        (self.scale * nn.functional.cross_entropy(self.model(x), y)).backward()
        self.optimizer.step()

    def run(self, change: Change | None = None, steps: int = STEPS) -> nn.Module:
        for step in range(steps):
            if step == AT and change:
                change(self)
            self.step()
        return self.model


def prints(program: Callable[[], Any], **plan: Any) -> dict[tuple[int, int], Fingerprint]:
    found = [one for one in observed(program, **plan).of_parts if isinstance(one, Fingerprint)]
    return {(one.step, one.rank): one for one in found}


@pytest.fixture(scope="module")
def usual() -> dict[tuple[int, int], Fingerprint]:
    return prints(lambda: Training().run(), every=1)


def weight(training: Training) -> None:
    with torch.no_grad():
        training.model[4].weight[1, 2] += 1e-7


def buffer(training: Training) -> None:
    training.model[1].running_mean[0] += 1.0  # type: ignore[union-attr,operator,index]


def state(training: Training) -> None:
    training.optimizer.state[training.model[0].weight]["exp_avg"][0, 0] += 1e-9


def rate(training: Training) -> None:
    training.optimizer.param_groups[0]["lr"] = 0.02


def batch(training: Training) -> None:
    x, y = training.batch()
    training.batch = lambda: (x.flip(0), y.flip(0))  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        swept(weight, "in the weights (4.weight alone)"),
        swept(buffer, "in the weights (1.running_mean alone)"),
        swept(state, "in the optimizer's state"),
        swept(rate, "in the optimizer's settings"),
        swept(lambda _: torch.rand(1), "in PyTorch's random numbers"),
        (batch, "in the batch"),
    ],
)
def test_what_differs_first_is_named(change: Change, words: str, usual: Any) -> None:
    other = prints(lambda: Training().run(change), every=1)
    text = TwoRuns(usual, other).parting()
    assert text.startswith(f"the runs part at step {AT}, {words}; ") and SAME in text
    assert TwoRuns(other, usual).parting().startswith(f"the runs part at step {AT}, {words}; ")


def clipped(training: Training) -> None:
    """From here on gradients are clipped, which no fingerprint sees."""
    clip = nn.utils.clip_grad_norm_
    training.optimizer.register_step_pre_hook(lambda *_: print(clip(training.model.parameters(), 1e-3)))


def test_what_a_step_did_differently_shows_in_the_weights_after_it(usual: Any) -> None:
    other = prints(lambda: Training().run(clipped), every=1)
    text = TwoRuns(usual, other).parting()
    assert text.startswith(f"the runs part at step {AT + 1}, in the weights, the optimizer's state (0.weight and ")
    assert f"step {AT} began alike: look at code after its loss, or kernels that add in no fixed order" in text
    earlier = [
        {at: replace(one, loss="", returned="", targets="") for at, one in run.items()} for run in (usual, other)
    ]
    assert f"step {AT} began alike: look at its targets, its code" in TwoRuns(*earlier).parting()
    assert TwoRuns(usual, other).worth_recording() == ("--ops", "--steps", f"{AT}:{AT + 1}")
    rarely = [{at: one for at, one in run.items() if at[0] in (0, STEPS - 1)} for run in (usual, other)]
    assert "began alike, and the steps between them were not recorded" in TwoRuns(*rarely).parting()
    assert TwoRuns(*rarely).worth_recording() == ("--every", "1", "--steps", f"0:{STEPS}")


def other_labels(training: Training) -> None:
    x, y = training.batch()
    training.batch = lambda: (x, y.flip(0))  # type: ignore[method-assign]


def other_forward(training: Training) -> None:
    training.model[4].register_forward_hook(lambda module, args, output: output * 1.5)


IN_LOSS = "the loss (its targets, or how it is computed)"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("change", "where", "same"),
    [
        (other_labels, "the targets", "the model's output"),
        (lambda one: setattr(one, "scale", 1.5), IN_LOSS, "the model's output"),
        swept(other_forward, "the model's output", "the batch"),
    ],
)
def test_what_differs_within_a_step_is_named(change: Change, where: str, same: str, usual: Any) -> None:
    other = prints(lambda: Training().run(change), every=1)
    usual = {at: one for at, one in usual.items() if at[0] <= AT} if change is other_labels else usual
    text = TwoRuns(usual, other).parting()
    assert text.startswith(f"the runs part at step {AT}, in {where}; ")
    assert text.endswith((f" and 1 more {SAME}", f"{same} {SAME}"))
    assert bool(TwoRuns(usual, other).worth_recording()) is (change is other_forward)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": nn.functional.mse_loss,
    "huber": nn.functional.smooth_l1_loss,
    "l1": nn.functional.l1_loss,
    "by hand": lambda out, y: (out - y).square().mean(),
    "bce": nn.functional.binary_cross_entropy_with_logits,
    "kl": lambda out, y: nn.functional.kl_div(out.log_softmax(1), y.softmax(1), reduction="batchmean"),
    "soft labels": lambda out, y: nn.functional.cross_entropy(out, y.softmax(1)),
    "cosine": lambda out, y: (1 - nn.functional.cosine_similarity(out, y)).mean(),
}


@pytest.mark.parametrize("loss", [name if name in ("mse", "by hand") else swept(name) for name in LOSSES])
def test_targets_of_other_losses_have_fingerprints(loss: str) -> None:
    def program(seed: int) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        x, y = torch.randn(8, 6), torch.rand(8, 3, generator=torch.Generator().manual_seed(seed))
        LOSSES[loss](model(x), y).backward()
        return model

    one, same, other = (prints(lambda seed=seed: program(seed)) for seed in (1, 1, 2))
    assert one[0, 0].loss and one[0, 0].loss == same[0, 0].loss and one[0, 0].targets == same[0, 0].targets
    text = TwoRuns(one, other).parting()
    assert text.startswith(f"the runs part at step 0, in {'the targets' if one[0, 0].targets else IN_LOSS}; ")


def test_nothing_that_a_program_has_packed_is_unpacked() -> None:
    """Saved tensors of a loss in a checkpoint would be computed again, those of `save_on_cpu` copied."""
    ran = []

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        ran.append(1)
        return nn.functional.mse_loss(out, y)

    def program() -> nn.Module:
        model = nn.Linear(6, 3)
        out, y = model(torch.randn(8, 6)), torch.rand(8, 3)
        checkpoint(loss_of, out, y, use_reentrant=False).backward()
        return model

    found = prints(program)
    assert len(ran) == 4  # with the recomputation of backward, alone and observed
    assert not found[0, 0].targets and found[0, 0].returned


# Values, where operators are recorded.


class Scaled(nn.Module):
    """`how` changes one thing in the forward: a value, or what is computed."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.how, self.body, self.head = how, nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.body(x))
        if self.how == "more":
            x = x * 1.0
        if self.how == "other":
            return (self.head(x) * 1.5).relu()
        scores: Tensor = (self.head(x) * (1.25 if self.how == "value" else 1.0)).relu()
        return scores


def computed(how: str) -> nn.Module:
    torch.manual_seed(0)
    model = Scaled(how)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if how == "step":
        optimizer.register_step_post_hook(lambda *_: setattr(model.head.bias, "data", model.head.bias.data + 1.0))
    for _ in range(2):
        optimizer.zero_grad()
        output = model(torch.randn(8, 6))
        output.register_hook((lambda grad: grad * 2) if how == "gradient" else (lambda grad: grad))
        (output - torch.rand(8, 3) * (2 if how == "targets" else 1)).square().mean().backward()
        if how == "clipped":
            nn.utils.clip_grad_norm_(model.head.parameters(), 1e-3)
        optimizer.step()
    return model


def with_values(how: str) -> tuple[dict[Any, Fingerprint], dict[Any, Values]]:
    torch._dynamo.reset()  # after tests that have compiled functions, losses are not watched
    lines = observed(lambda: computed(how), every=1, ops="functions").of_parts
    record = Record(Path("a.run.jsonl"), of_parts=list(lines))
    return prints_of(record, "Scaled"), values_of(record, "Scaled")


@pytest.fixture(scope="module")
def plainly() -> tuple[dict[Any, Fingerprint], dict[Any, Values]]:
    return with_values("")


def compared(one: Any, other: Any) -> TwoRuns:
    return TwoRuns(one[0], other[0], one[1], other[1])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("value", "in the model's output: the first output that differs comes from :mul_1"),
        swept("other", "in the model's output: the first output that differs comes from :mul_1"),
        ("more", ": A computes head where B computes :mul_1"),
        ("targets", f"in {IN_LOSS}: the first output that differs comes from (loss):sub_1"),
        swept("gradient", ": all outputs are the same, and the first gradient that differs belongs to "),
        ("clipped", ": all outputs are the same, and the first gradient that differs belongs to head.weight"),
    ],
)
def test_the_first_value_that_differs_is_named(how: str, words: str, plainly: Any) -> None:
    text = compared(plainly, with_values(how)).parting()
    assert text.startswith("the runs part at step 0") and words in text and SAME in text
    assert "test_parting.py" in text or how == "clipped"


def test_values_that_are_all_the_same_are_said_to_be(plainly: Any) -> None:
    text = "bit for bit, all 2 steps that both have recorded began alike, and all outputs and gradients are the same"
    assert compared(plainly, with_values("")).parting() == text
    other = with_values("step")
    first = [{at: one for at, one in of.items() if at[0] == 0} for of in (*plainly, *other)]
    after = [{(1, 0): replace(run[1, 0], after=True)} for run in (plainly[0], other[0])]
    both = TwoRuns(first[0] | after[0], first[2] | after[1], first[1], first[3])
    assert both.parting() == text.replace("all 2 steps", "the step") + "; the optimizer's step 0 made them differ"


def test_lines_of_the_program_that_moved_are_no_difference(plainly: Any) -> None:
    def moved(line: Values) -> Values:
        return replace(line, output_names=[name.replace(".py:", ".py:1") for name in line.output_names])

    prints_, values = plainly
    assert "began alike" in TwoRuns(prints_, prints_, values, {at: moved(one) for at, one in values.items()}).parting()


def test_the_same_program_is_the_same(usual: Any) -> None:
    assert TwoRuns(usual, prints(lambda: Training().run(), every=1)).parting() == (
        f"bit for bit, all {STEPS} steps that both have recorded began alike"
    )
    assert [one.step for one in usual.values() if one.after] == [STEPS]


@pytest.mark.sweep
def test_generators_from_which_nothing_is_drawn_do_not_count() -> None:
    """Python's and numpy's are seeded by the clock in most programs, and PyTorch's draws nothing without Dropout."""

    def run(seed: int, draws: bool = False) -> nn.Module:
        training = Training()
        training.model[3].p = 0.0  # type: ignore[assignment]
        torch.manual_seed(seed)
        random.seed(seed)
        return training.run((lambda _: random.random()) if draws else None)

    one = prints(lambda: run(1), every=1)
    assert "began alike" in TwoRuns(one, prints(lambda: run(2), every=1)).parting()
    drawn = TwoRuns(one, prints(lambda: run(2, draws=True), every=1)).parting()
    assert drawn.startswith("the runs part at step 0, in Python's random numbers; ")


def test_steps_that_were_not_recorded_are_not_told_apart(usual: Any) -> None:
    other = prints(lambda: Training().run(rate), every=3)
    text = TwoRuns(usual, other).parting()
    assert text.startswith("the runs part at step 6, in the weights, the optimizer's state, the optimizer's settings ")


@pytest.mark.parametrize(
    ("restored", "words"),
    [
        (("weights", "state", "data"), "restored, too: the optimizer's state"),
        swept(("weights", "data"), "not restored: the optimizer's state"),
        (("weights", "state"), "restored, too: the optimizer's state; its first batch is the batch of A's step 0"),
    ],
)
def test_a_run_that_goes_on_is_told_what_it_lacks(restored: tuple[str, ...], words: str, usual: Any) -> None:
    first = Training()
    first.run()

    def resumed() -> nn.Module:
        training = Training()
        training.model.load_state_dict(copy.deepcopy(first.model.state_dict()))
        if "state" in restored:
            training.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
        if "data" in restored:
            training.generator.set_state(first.generator.get_state())
        return training.run(steps=3)

    second = prints(resumed, every=1)
    said = f"B begins with the weights that A had after step {STEPS - 1}; {words}"
    assert TwoRuns(usual, second).goes_on("AB") == said
    assert TwoRuns(second, usual).goes_on("BA") == ""


def test_a_run_that_goes_on_from_the_middle_is_compared_with_the_step_there(usual: Any) -> None:
    """Then random numbers and settings count as well: both are as a step begins."""
    later = {(step - AT, rank): replace(one, step=step - AT) for (step, rank), one in usual.items() if step >= AT}
    words = "PyTorch's random numbers"
    said = TwoRuns(usual, later).goes_on("AB")
    assert said.startswith(f"B begins with the weights that A had at step {AT}; restored, too: the optimizer's state, ")
    assert words in said and said.endswith(f"the batch; its first batch is the batch of A's step {AT}")
    drawn = {**later, (0, 0): replace(later[0, 0], random="0" * 16)}
    assert f"; not restored: {words}; " in TwoRuns(usual, drawn).goes_on("AB")


def test_ranks_are_compared_each_with_its_own(usual: Any) -> None:
    ranks = {(step, rank): replace(one, rank=rank) for (step, _), one in usual.items() for rank in (0, 1)}
    other = {**ranks, (AT, 1): replace(ranks[AT, 1], received="0" * 16)}
    assert TwoRuns(ranks, other).parting().startswith(f"the runs part at step {AT} on rank 1, in the batch; ")


def test_the_command_that_records_both_again() -> None:
    def record(name: str, argv: list[str], script: str = "train.py") -> Record:
        return Record(Path("runs", name), header=Header(script, argv, "", 1, {}))

    options = ("--ops", "--steps", "6:7")
    a, b = record("a.run.jsonl", ["train.py"]), record("b.run.jsonl", ["train.py", "--seed", "1 2"])
    run, paths = "hookcli run --ops --steps 6:7 --output", ("runs/a-6-7.run.jsonl", "runs/b-6-7.run.jsonl")
    again = f"{run} {paths[0]} train.py && {run} {paths[1]} train.py --seed '1 2' && hookcli diff {' '.join(paths)}"
    assert recorded_again(a, b, options) == again
    assert recorded_again(a, record("b.run.jsonl", ["my.train"], "my.train"), options) == ""
    assert recorded_again(a, a, options) == ""


def test_records_without_fingerprints_say_nothing(usual: Any) -> None:
    for both in (TwoRuns({}, usual), TwoRuns(usual, {}), TwoRuns({}, {})):
        assert both.parting() == both.goes_on("AB") == ""
