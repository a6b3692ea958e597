"""What the checks say of the recorded steps together: weights that never move, and parameters that nothing updates."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from observing import observed, skipped
from records import HEADER, end, save
from torch import Tensor, nn
from torch.nn import functional

from hookcli.record.file.reading import read_record
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.file.views.overview import findings
from hookcli.record.observe.optimizers.optimizer_steps import OptimizerSteps
from hookcli.table import Finding
from hookcli.table.names import is_operator

Program = Callable[[], Any]


def found(program: Program, **plan: Any) -> dict[str, Finding]:
    """The findings of the last recorded training step, by check."""
    seen = observed(program, check=True, **plan)
    step = next(one for one in reversed(seen.recorded) if one.phase == "train" and one.forwards)
    return {finding.check: finding for report in step.reports for finding in report.findings}


def every_finding(step: RecordedStep) -> list[Finding]:
    return [finding for report in step.reports for finding in report.findings]


def net(*, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3)).to(dtype)


def steps(model: nn.Module, number: int = 10) -> Iterator[Tensor]:
    """The loss of each step, which has gone backward."""
    dtype = next(model.parameters()).dtype
    for _ in range(number):
        model.zero_grad()
        loss = functional.cross_entropy(model(torch.randn(32, 8, dtype=dtype)).float(), torch.randint(3, (32,)))
        loss.backward()
        yield loss


def trained(model: nn.Module, optimizer: Any, number: int = 10, scheduler: Any = None) -> nn.Module:
    for _ in steps(model, number):
        optimizer.step()
        if scheduler:
            scheduler.step()
    return model


# Parameters that no optimizer has.


def a_replaced_layer() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model[3] = nn.Linear(16, 3)
    return trained(model, optimizer)


def a_replaced_weight() -> nn.Module:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    model[3].weight = nn.Parameter(torch.randn(3, 16))
    return trained(model, optimizer)


def a_copied_model() -> nn.Module:
    model = net()
    return trained(copy.deepcopy(model), torch.optim.SGD(model.parameters(), 0.1))


def a_body_alone() -> nn.Module:
    """What is left out has a bias of a single value."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model[0].parameters(), 0.01)
    for _ in range(10):
        model.zero_grad()
        model(torch.randn(32, 8)).square().mean().backward()
        optimizer.step()
    return model


def part_of_a_model() -> nn.Module:
    model = net()
    return trained(model, torch.optim.SGD(model[3].parameters(), 0.1))


@pytest.mark.parametrize(
    ("program", "severity", "place", "names"),
    [
        (a_replaced_layer, "error", "3", "weight, bias"),
        (a_replaced_weight, "error", "3", "weight"),
        (a_copied_model, "error", "", "0.weight, 0.bias, 1.weight and 3 more parameters"),
        (a_body_alone, "warning", "1", "weight, bias"),
        (part_of_a_model, "warning", "", "0.weight, 0.bias, 1.weight and 1 more parameter"),
    ],
)
def test_parameters_that_no_optimizer_has_are_named(program: Program, severity: str, place: str, names: str) -> None:
    """Their gradients came: nothing is said of a missing one."""
    findings = found(program)
    assert findings.keys() == {"HK053"}
    assert (findings["HK053"].severity, findings["HK053"].fqn) == (severity, place)
    assert findings["HK053"].message.startswith(
        f"no optimizer has {names}: gradients arrive, but nothing updates the values"
    )
    assert ("without gradients, in no module that runs" in findings["HK053"].message) == (severity == "error")


def test_parameters_of_no_model_are_not_looked_for_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    look = OptimizerSteps.look_for_stale
    monkeypatch.setattr(OptimizerSteps, "look_for_stale", lambda *args: looked.append(1) or look(*args))

    def program() -> nn.Module:
        model = net()
        return trained(copy.deepcopy(model), torch.optim.SGD(model.parameters(), 0.1), number=60)

    assert found(program, every=20)["HK053"].severity == "error"
    assert 3 <= len(looked) < 30


def test_the_reason_why_a_gradient_was_not_taken_is_the_true_one() -> None:
    seen = observed(a_replaced_layer)
    assert skipped(seen.recorded[0], "grads")["3.weight"] == "it got a gradient, but no optimizer has it"


def two_optimizers_in_turns() -> nn.Module:
    model = net()
    often = torch.optim.Adam(model[3].parameters(), 1e-3)
    seldom = torch.optim.Adam([*model[0].parameters(), *model[1].parameters()], 1e-3)
    for number, _ in enumerate(steps(model, 9)):
        often.step()
        if number % 5 == 0:
            seldom.step()
    return model


def gradients_that_the_program_clears() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in steps(model):
        for parameter in model[3].parameters():
            parameter.grad = None
        optimizer.step()
    return model


def updates_by_hand() -> nn.Module:
    model = net()
    for _ in steps(model):
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad, alpha=-0.1)
    return model


def float32_masters() -> nn.Module:
    """The optimizer has copies in more bits, which the program rounds into the model."""
    model = net(dtype=torch.bfloat16)
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(masters, 1e-4)
    for _ in steps(model, 20):
        for master, parameter in zip(masters, model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
    return model


def gradients_for_inputs_alone() -> nn.Module:
    model = net()
    list(steps(model))
    return model


def a_frozen_part() -> nn.Module:
    model = net()
    model[0].requires_grad_(False)
    return trained(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1))


def a_layer_that_is_drawn() -> nn.Module:
    """Another branch in each step, as a mixture of experts has: each gets a gradient in some steps."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches, self.count = nn.ModuleList(nn.Linear(8, 3) for _ in range(2)), 0

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            y: Tensor = self.branches[self.count % 2](x)
            return y

    model = Branches()
    return trained(model, torch.optim.SGD(model.parameters(), 0.1))


def a_body_without_gradients() -> nn.Module:
    """Its parameters still require gradients: the program leaves them out of the optimizer."""

    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                features = self.body(x).tanh()
            y: Tensor = self.head(features)
            return y

    model = Probe()
    return trained(model, torch.optim.SGD(model.head.parameters(), 0.1))


def a_critic() -> nn.Module:
    """The gradients of its last bias, which are 1 and -1 for each pair, cancel."""
    model = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(10):
        model.zero_grad()
        (model(torch.randn(32, 8)).mean() - model(1 + torch.randn(32, 8)).mean()).backward()
        optimizer.step()
    return model


def gradients_that_are_given_back() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in steps(model, 12):
        gradients = [parameter.grad for parameter in model.parameters()]
        optimizer.zero_grad()
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
    return model


def an_optimizer_that_clears_alone() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(12):
        model(torch.randn(32, 8)).square().mean().backward()
        for parameter in model.parameters():
            parameter.data.sub_(0.1 * parameter.grad)
        optimizer.zero_grad()
    return model


def a_few_gradients_without_a_step() -> nn.Module:
    model = net()
    model.optimizer = torch.optim.SGD(model.parameters(), 0.1)  # it lives
    for _ in steps(model, 4):
        pass
    return model


def a_long_accumulation() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(12):
        model(torch.randn(32, 8)).square().mean().backward()
        if number == 10:
            optimizer.step()
            optimizer.zero_grad()
    return model


class Policy(nn.Module):
    """Scores of actions, of which those that are not allowed are -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x).relu())
        return torch.where(allowed, y, -math.inf)


def actions_that_are_not_allowed() -> nn.Module:
    model = Policy()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(12):
        x, allowed = torch.randn(32, 8), torch.rand(32, 5) > 0.4
        allowed[:, 0] = True
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=model(x, allowed)).sample()
        optimizer.zero_grad()
        (-torch.distributions.Categorical(logits=model(x, allowed)).log_prob(action).mean()).backward()
        optimizer.step()
    return model


class Scores(nn.Module):
    """Scores made by a function of a layer's output, the call's number, and whether it trains."""

    def __init__(self, function: Callable[[Tensor, int, bool], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(8, 5), function

    def forward(self, x: Tensor, number: int = 0) -> Tensor:
        return self.function(self.layer(x), number, self.training)


class Twice(nn.Module):
    """Calls its scores twice, with numbers 0 and 1."""

    def __init__(self, function: Callable[[Tensor, int, bool], Tensor]) -> None:
        super().__init__()
        self.scores = Scores(function)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.scores(x, 0).softmax(-1) + self.scores(x, 1).exp()
        return y


def hidden(y: Tensor) -> Tensor:
    return y.masked_fill(torch.arange(5) == 2, -math.inf)


def scored(model: nn.Module, number: int = 6) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(number):
        optimizer.zero_grad()
        model(torch.randn(32, 8)).softmax(-1).square().mean().backward()
        optimizer.step()
    return model


def a_mask_in_a_later_micro_batch() -> nn.Module:
    model = Scores(lambda y, number, _: hidden(y) if number == 2 else y.masked_fill(torch.arange(5) > 9, -math.inf))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(6):
        optimizer.zero_grad()
        for number in range(3):
            model(torch.randn(4, 8), number).softmax(-1).square().mean().backward()
        optimizer.step()
    return model


def a_target_network() -> nn.Module:
    model = Scores(lambda y, *_: hidden(y))
    target, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(6):
        with torch.no_grad():
            value = target(torch.randn(32, 8)).amax(1)
        optimizer.zero_grad()
        (model(torch.randn(32, 8))[:, 0] - value).square().mean().backward()
        optimizer.step()
    return model


ADDED = torch.full((5,), -math.inf).where(torch.arange(5) == 2, torch.zeros(5))
OTHER_MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "added": lambda y: y + ADDED,
    "added as a logarithm": lambda y: y + (torch.arange(5) != 2).float().log(),
    "scaled before": lambda y: hidden(y / 0.7),
    "scaled after": lambda y: hidden(y) / 0.7,
    "padded": lambda y: functional.pad(y[..., :4], (0, 1), value=-math.inf),
    "concatenated": lambda y: torch.cat((y[..., :4], torch.full((*y.shape[:-1], 1), -math.inf)), -1),
    "a module of its own": lambda y: Mask()(y),
}


class Mask(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        return y + ADDED


def a_frozen_router() -> nn.Module:
    router = Scores(lambda y, *_: hidden(y)).requires_grad_(False)
    model = nn.ModuleDict({"router": router, "head": nn.Linear(5, 2)})

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = model["head"](model["router"](x).softmax(-1))
            return y

    return scored(Routed())


def a_pool_over_tokens() -> nn.Module:
    model = nn.Sequential(Scores(lambda y, *_: y[..., :1].masked_fill(torch.arange(6)[:, None] > 3, -math.inf)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(6):
        optimizer.zero_grad()
        (model(h := torch.randn(4, 6, 8)).softmax(1) * h).sum(1).square().mean().backward()
        optimizer.step()
    return model


def a_critic_that_begins_later(begins_at: int | None = None, *, frozen: bool = False) -> list[nn.Module]:
    maker, critic = nn.Linear(4, 8), nn.Linear(8, 1).requires_grad_(not frozen)
    first = torch.optim.Adam(maker.parameters(), 1e-3)
    critic.optimizer = torch.optim.Adam(critic.parameters(), 1e-3)
    for number in range(8):
        first.zero_grad()
        (-critic(maker(torch.randn(8, 4))).mean()).backward()
        first.step()
        if begins_at is not None and number >= begins_at:
            critic.optimizer.step()
    return [maker, critic]


def a_generator_whose_optimizer_never_steps() -> list[nn.Module]:
    """The critic's optimizer steps twice instead."""
    maker, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    maker.optimizer = torch.optim.Adam(maker.parameters(), 1e-3)
    second = torch.optim.Adam(critic.parameters(), 1e-3)
    for _ in range(8):
        fake = maker(torch.randn(8, 4))
        second.zero_grad()
        (critic(fake.detach()).mean() - critic(torch.randn(8, 8)).mean()).backward()
        second.step()
        maker.optimizer.zero_grad()
        (-critic(fake).mean()).backward()
        second.step()
    return [maker, critic]


def gradients_of_inputs_in_eval_mode() -> nn.Module:
    model = net().eval()
    model.optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(8):
        model.zero_grad()
        model(torch.randn(4, 8, requires_grad=True)).square().mean().backward()
    return model


def a_frozen_logarithm() -> nn.Module:
    part = Scores(lambda y, *_: y.relu().log()).requires_grad_(False)
    return scored(nn.Sequential(part, nn.Softmax(-1), nn.Linear(5, 2)))


BROKEN_SCORES: dict[str, Program] = {
    "a number beside a logarithm": lambda: scored(Scores(lambda y, *_: y.relu().log() + 1e-8)),
    "a logarithm in a branch": lambda: scored(Scores(lambda y, *_: torch.where(y > 1, 0.0, y.relu().log()))),
    "a logarithm in another call": lambda: scored(Twice(lambda y, n, _: y.relu().log() if n else hidden(y))),
    "added to an overflow": lambda: scored(Scores(lambda y, *_: y * 1e38 * 1e10 + ADDED)),
    "a logarithm of a frozen layer": a_frozen_logarithm,
    "infinities in one step alone": lambda: scored(OnceBad(), 2),
    "scaled to an overflow": lambda: scored(Scores(lambda y, *_: hidden(y * -1e38 * 1e10))),
}


class OnceBad(nn.Module):
    """Returns infinities that it computes, in its first step alone, and a loss that is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.part = 0, Scores(lambda y, *_: y.relu().log() if self.calls == 1 else y)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.part(x).exp()


@pytest.mark.parametrize("first_bad", [None, "report"])
@pytest.mark.parametrize("name", OTHER_MASKS)
def test_masks_that_no_node_shows_are_looked_at_in_the_next_step(name: str, first_bad: str | None) -> None:
    def program() -> nn.Module:
        return scored(nn.Sequential(Scores(lambda y, *_: OTHER_MASKS[name](y))))

    seen = observed(program, check=True, first_bad=first_bad)
    last = [step for step in seen.recorded if step.phase == "train"][-1]
    assert not seen.non_finites
    assert not [one for report in last.reports for one in report.findings]
    assert not any(is_operator(row.fqn) for report in last.reports for row in report.rows)


@pytest.mark.parametrize("name", BROKEN_SCORES)
def test_a_search_finds_the_infinities_of_computations_at_the_module_that_makes_them(name: str) -> None:
    (value,) = observed(BROKEN_SCORES[name], first_bad="report").non_finites
    assert value.step == 0 and value.what.startswith("output")


@pytest.mark.parametrize("name", BROKEN_SCORES)
def test_infinities_of_computations_are_no_masks(name: str) -> None:
    assert "HK003" in found(BROKEN_SCORES[name])


def test_other_infinities_in_eval_mode_are_no_masks_though_training_has_some() -> None:
    def program() -> nn.Module:
        model = scored(Scores(lambda y, _, training: hidden(y) if training else y / 0.0)).eval()
        with torch.no_grad():
            model(torch.randn(4, 8))
        return model

    seen = observed(program, check=True)
    without = next(step for step in seen.recorded if step.phase != "train")
    assert "HK003" in {one.check for report in without.reports for one in report.findings}


@pytest.mark.parametrize(
    "program",
    [
        a_mask_in_a_later_micro_batch,
        a_target_network,
        a_frozen_router,
        a_pool_over_tokens,
        gradients_of_inputs_in_eval_mode,
        an_optimizer_that_clears_alone,
        a_few_gradients_without_a_step,
        a_long_accumulation,
        actions_that_are_not_allowed,
        two_optimizers_in_turns,
        a_body_without_gradients,
        a_critic,
        gradients_that_are_given_back,
        gradients_that_the_program_clears,
        updates_by_hand,
        float32_masters,
        gradients_for_inputs_alone,
        a_frozen_part,
        a_layer_that_is_drawn,
    ],
)
def test_programs_that_work_are_not_accused(program: Program) -> None:
    assert found(program) == {}


# Weights that never move.


def gains_of_one_in_bfloat16(rate: float = 6e-4) -> nn.Module:
    model = net(dtype=torch.bfloat16)
    return trained(model, torch.optim.Adam(model.parameters(), rate), 12)


def everything_at_a_tiny_rate() -> nn.Module:
    model = net(dtype=torch.bfloat16)
    return trained(model, torch.optim.SGD(model.parameters(), 1e-9), 12)


class Forgets(torch.optim.Optimizer):
    """Computes new weights, and leaves the old ones."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            _ = [parameter - group["lr"] * parameter.grad for parameter in group["params"]]


def an_optimizer_that_forgets() -> nn.Module:
    model = net()
    return trained(model, Forgets(model.parameters()), 12)


@pytest.mark.parametrize(
    ("program", "place", "said"),
    [
        (gains_of_one_in_bfloat16, "1", ("weight did not move", "bfloat16 numbers near 1.000 are 0.007812 apart")),
        (everything_at_a_tiny_rate, "", ("0.weight, 0.bias, 1.weight and ", "(learning rate 1e-09)")),
        (an_optimizer_that_forgets, "", ("3 more parameters did not move", "its optimizer leaves it as it is")),
    ],
)
def test_weights_that_never_move_are_named_with_the_cause(program: Program, place: str, said: tuple[str, ...]) -> None:
    finding = found(program)["HK054"]
    assert (finding.severity, finding.fqn) == ("error", place)
    assert all(words in finding.message for words in said), finding.message


@pytest.mark.parametrize(
    ("program", "model"),
    [(a_critic_that_begins_later, "Linear #2"), (a_generator_whose_optimizer_never_steps, "Linear")],
)
def test_an_optimizer_that_never_steps_beside_one_of_another_model_is_a_warning(program: Program, model: str) -> None:
    findings = {(step.model, one) for step in observed(program, check=True).recorded for one in every_finding(step)}
    ((name, finding),) = findings
    words = "Adam made no step after any of 8 backward passes"
    assert (name, finding.check, finding.severity, finding.message) == (model, "HK054", "warning", words)


@pytest.mark.parametrize("settings", [{"begins_at": 6}, {"frozen": True}])
def test_an_optimizer_that_begins_or_whose_parameters_are_frozen_is_not_accused(settings: dict[str, Any]) -> None:
    seen = observed(lambda: a_critic_that_begins_later(**settings), check=True)
    assert not [one for step in seen.recorded for one in every_finding(step)]


@pytest.mark.parametrize("begins_at", [None, 6])
def test_one_of_two_optimizers_that_never_steps_is_said(begins_at: int | None) -> None:
    def program() -> nn.Module:
        model = net()
        idle, used = torch.optim.Adam(model[0].parameters()), torch.optim.SGD([*model[1:].parameters()], 0.1)
        model.idle = idle
        for number, _ in enumerate(steps(model, 12)):
            used.step()
            if begins_at is not None and number >= begins_at:
                idle.step()
        return model

    findings = found(program)
    assert bool(findings) == (begins_at is None)
    for finding in findings.values():
        assert (finding.check, finding.severity, finding.fqn) == ("HK054", "warning", "0")
        assert finding.message.startswith("Adam, which has weight, bias, made no step in any of ")


def test_a_rate_of_zero_in_every_step_is_said() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return trained(model, optimizer, 12, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0))

    assert found(program)["HK054"].message.startswith("the learning rate was 0 in each of the 12 recorded steps")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_gradients_that_are_cleared_before_every_step_are_said(kind: Callable[..., torch.optim.Optimizer]) -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = kind(model.parameters(), 0.1)
        for _ in steps(model, 12):
            optimizer.zero_grad()
            optimizer.step()
        return model

    finding = found(program)["HK054"]
    words = "every gradient was cleared before the optimizer's step, in each of the 12 recorded steps"
    assert finding.severity == "error" and finding.message.startswith(words)
    assert finding.remedy and "before backward()" in finding.remedy


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("clears", [False, True])
def test_an_optimizer_that_never_steps_is_said(kind: Callable[..., torch.optim.Optimizer], clears: bool) -> None:
    def program() -> nn.Module:
        model = net()
        model.optimizer = kind(model.parameters(), 0.1)
        for _ in range(12):
            if clears:
                model.optimizer.zero_grad()
            model(torch.randn(32, 8)).square().mean().backward()
        return model

    finding = found(program)["HK054"]
    words = f"{kind.__name__} made no step after any of 12 backward passes: nothing was trained"
    assert (finding.severity, finding.message) == ("error", words)
    assert "step()" in str(finding.remedy)


def scaled(fused: bool, number: int, bad: range) -> nn.Module:
    """A fused optimizer skips steps by itself."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", 2.0**8)
    for step in range(number):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(32, 8)).square().mean()).backward()
        if step in bad:
            model[0].weight.grad.fill_(math.inf)
        scaler.step(optimizer)
        scaler.update()
    return model


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("bad", "severity", "message"),
    [
        (range(12), "error", "the GradScaler skipped each of the 12 recorded steps: nothing was trained"),
        (range(2, 12), "warning", "the GradScaler skipped each of the last 10 recorded steps"),
        (range(6), "", ""),
        (range(11), "", ""),
        (range(4, 12), "", ""),
    ],
)
def test_a_grad_scaler_that_skips_every_step_is_said(fused: bool, bad: range, severity: str, message: str) -> None:
    """Several overflows in a row are how it finds its scale."""
    finding = found(lambda: scaled(fused, 12, bad)).get("HK054")
    assert (finding.severity, finding.message) == (severity, message) if finding else not severity


@pytest.mark.parametrize("first_bad", [None, "report"])
def test_scores_of_a_forward_without_gradients_are_those_of_training(first_bad: str | None) -> None:
    seen = observed(actions_that_are_not_allowed, check=True, first_bad=first_bad)
    assert not seen.non_finites and {step.phase for step in seen.recorded} > {"train"}
    assert not [one for step in seen.recorded for report in step.reports for one in report.findings]


@pytest.mark.parametrize("trains", [False, True])
def test_scores_that_no_training_tells_to_be_meant_are_judged(trains: bool) -> None:
    def program() -> nn.Module:
        model, x = nn.Sequential(nn.Linear(8, 5), Logarithm()), torch.ones(4, 8)
        nn.init.constant_(model[0].weight, -1.0)
        if trains:
            trained(model, torch.optim.SGD(model.parameters(), 1e-3), 1)
        with torch.no_grad():
            model(x)
        return model

    seen = observed(program, check=True)
    without = next(step for step in seen.recorded if step.phase != "train")
    assert "HK003" in {one.check for report in without.reports for one in report.findings}


class Logarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu().log()


def a_rate_of_zero_at_first() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return trained(model, optimizer, 12, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step > 8)))


def a_warm_up_that_goes_on() -> nn.Module:
    model = net(dtype=torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), 1.0)
    return trained(model, optimizer, 12, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 1e5))


def a_group_with_a_rate_of_zero() -> nn.Module:
    model = net()
    groups: list[dict[str, Any]] = [{"params": [*model[0].parameters()], "lr": 0.0}]
    return trained(model, torch.optim.SGD([*groups, {"params": [*model[3].parameters()]}], 0.1), 12)


def a_bias_before_a_norm() -> nn.Module:
    """Its gradient is rounding alone."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    return trained(model, torch.optim.SGD(model.parameters(), 1e-2), 12)


class KeepsMore(torch.optim.Optimizer):
    """Keeps copies of the weights in float32."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-4})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                copied = self.state[parameter].setdefault("copy", parameter.detach().float())
                parameter.copy_(copied.sub_(parameter.grad.sign(), alpha=group["lr"]))


def copies_in_the_optimizer() -> nn.Module:
    model = net(dtype=torch.bfloat16)
    return trained(model, KeepsMore(model.parameters()), 12)


@pytest.mark.parametrize(
    "program",
    [
        a_rate_of_zero_at_first,
        a_warm_up_that_goes_on,
        a_bias_before_a_norm,
        copies_in_the_optimizer,
    ],
)
def test_weights_that_rest_for_a_reason_are_not_accused(program: Program) -> None:
    assert "HK054" not in found(program)


def test_a_group_that_a_rate_of_zero_freezes_is_not_accused() -> None:
    assert "HK054" not in found(a_group_with_a_rate_of_zero)


# Modules that no recorded step runs.


class Experts(nn.Module):
    """Runs those of its three branches that `chosen` gives for the number of the call."""

    def __init__(self, chosen: Callable[[int], list[int]]) -> None:
        super().__init__()
        self.experts, self.chosen, self.calls = nn.ModuleList(nn.Linear(8, 3) for _ in range(3)), chosen, 0

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.chosen(self.calls)
        self.calls += 1
        return torch.stack([self.experts[number](x) for number in chosen]).mean(0)


def routed(chosen: Callable[[int], list[int]]) -> nn.Module:
    model = Experts(chosen)
    return trained(model, torch.optim.SGD(model.parameters(), 0.1), 12)


@pytest.mark.parametrize(
    ("chosen", "plan", "severity", "called", "steps"),
    [
        (lambda n: [n % 2 + 1], {"every": 2}, "warning", "not called in any of 6 recorded steps", " in the 6 recorded"),
        (lambda n: [n % 2], {}, "warning", "never called", " in the 12 recorded steps"),
        (lambda n: [0, 1], {}, "error", "never called", ""),
        (lambda n: [0, 1], {"start": 4}, "error", "not called in any of 8 recorded steps", ""),
    ],
)
def test_experts_that_no_recorded_step_ran_are_no_error(
    chosen: Callable[[int], list[int]], plan: dict[str, Any], severity: str, called: str, steps: str
) -> None:
    """A layer that a loop leaves out is: those beside it run in each step."""
    findings = found(lambda: routed(chosen), **plan)
    assert findings.keys() == {"HK006", "HK008"}
    assert findings["HK006"].message == f"Linear with 27 parameters was {called}"
    assert findings["HK008"].severity == severity
    assert findings["HK008"].message.startswith("no gradient reached weight, bias" + steps)


@pytest.mark.parametrize("every", [1, 2])
def test_a_head_that_no_recorded_step_trained_is_no_error_if_others_may_have(every: int) -> None:
    """Two heads run in each step, and are trained in turns."""

    def program() -> nn.Module:
        model = nn.ModuleList(nn.Linear(8, 3) for _ in range(2))
        both = Heads(model)
        optimizer = torch.optim.SGD(both.parameters(), 0.1)
        for number in range(12):
            optimizer.zero_grad()
            both(torch.randn(32, 8))[number % 2].square().mean().backward()
            optimizer.step()
        return both

    finding = found(program, every=every).get("HK008")
    assert (finding and finding.severity) == ("warning" if every == 2 else None)


class Heads(nn.Module):
    def __init__(self, heads: nn.ModuleList) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> list[Tensor]:
        return [head(x) for head in self.heads]


# Gradients that are zero.


@pytest.mark.parametrize("zero_in", [range(6), range(3, 6)])
def test_a_run_in_which_every_gradient_is_zero_is_an_error(zero_in: range) -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(6):
            optimizer.zero_grad()
            (model(torch.randn(32, 8)).square().mean() * float(step not in zero_in)).backward()
            optimizer.step()
        return model

    finding = found(program)["HK009"]
    assert finding.severity == ("error" if zero_in == range(6) else "warning")
    assert ("every gradient was zero in all 6 recorded steps" in finding.message) == (zero_in == range(6))


def set_to_zero(gradients: list[Tensor]) -> None:
    for gradient in gradients:
        gradient.zero_()


def clip_by_an_infinite_norm(gradients: list[Tensor]) -> None:
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    nn.utils.clip_grad_norm_(parameters, 1.0)


def replace_nan(gradients: list[Tensor]) -> None:
    for gradient in gradients:
        gradient.nan_to_num_(0.0)


@pytest.mark.parametrize(
    ("change", "factor", "words", "advice"),
    [
        (set_to_zero, 1.0, "every gradient was cleared before the optimizer's step", "before backward()"),
        (clip_by_an_infinite_norm, 1e22, "zeroed since then, as clipping by an infinite norm does", "clip_grad_norm_"),
        (replace_nan, math.nan, "backward left NaN or infinities, and the program set all gradients to", "--first-bad"),
    ],
)
def test_what_made_all_gradients_zero_is_told_by_what_backward_left(
    change: Callable[[list[Tensor]], None], factor: float, words: str, advice: str
) -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(6):
            optimizer.zero_grad()
            (model(torch.randn(32, 8)).square().mean() * factor).backward()
            change([p.grad for p in model.parameters() if p.grad is not None])
            optimizer.step()
        return model

    finding = found(program)["HK009"]
    assert finding.severity == "error" and words in finding.message and advice in str(finding.remedy)


# Gradients that are NaN, though the optimizer gets none that is.


def with_bad_gradients(bad: range, *, cleans: bool, scales: bool = False, number: int = 14) -> nn.Module:
    """Where the gradient is NaN, though the loss is not, the program replaces it, or leaves the step out."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", 2.0, enabled=scales)
    for step in range(number):
        h = model(torch.randn(16, 8))
        if step in bad:
            h = h + (h * 0).square().sum(1, keepdim=True).sqrt()
        optimizer.zero_grad()
        scaler.scale(h.square().mean()).backward()
        if cleans:
            for parameter in model.parameters():
                parameter.grad.nan_to_num_(0.0)
        if scales or nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite():
            scaler.step(optimizer)
            scaler.update()
    return model


@pytest.mark.parametrize(
    ("program", "severity", "words"),
    [
        (partial(with_bad_gradients, range(5, 6), cleans=True), "warning", "as the optimizer stepped (step 5)"),
        (partial(with_bad_gradients, range(5, 6), cleans=False), "warning", "as the optimizer stepped (step 5)"),
        (partial(with_bad_gradients, range(7, 14), cleans=False), "error", "none of 7 backward passes was followed"),
        (partial(with_bad_gradients, range(13, 14), cleans=False), "warning", "values of the gradient of its output"),
        (partial(with_bad_gradients, range(5, 6), cleans=False, scales=True), "", ""),
        (partial(with_bad_gradients, range(0), cleans=False), "", ""),
    ],
)
def test_gradients_that_are_nan_on_their_way_are_said(program: Program, severity: str, words: str) -> None:
    finding = found(program).get("HK004")
    assert (finding.severity, finding.fqn) == (severity, "") if finding else not severity
    assert finding is None or words in finding.message


def test_gradients_of_inputs_after_the_training_are_no_steps_that_did_not_happen() -> None:
    def program() -> nn.Module:
        model = net()
        trained(model, torch.optim.SGD(model.parameters(), 0.1))
        for _ in range(6):
            model(torch.randn(4, 8, requires_grad=True)).square().mean().backward()
        return model

    assert found(program) == {}


def test_the_verdict_is_that_of_all_steps_whichever_is_shown(tmp_path: Path) -> None:
    """The last step never came to its end: the one before it is shown, with what it judged and all that came after."""

    seen = observed(partial(with_bad_gradients, range(7, 14), cleans=False), check=True)
    record = read_record(save(tmp_path / "run.jsonl", [HEADER, *seen.recorded, end()]))
    (shown,) = record.last()
    assert (shown.step, shown.complete) == (6, True)
    (verdict,) = findings(shown)
    assert [finding.check for finding in verdict.findings] == ["HK004"] and verdict.totals["steps"] == 7
    whole = next(step for step in seen.recorded if step.step == 6 and step.complete)
    assert {*verdict.meta["checks"]} == {*findings(whole)[0].meta["checks"]}


# Findings that stay, with their step.


@pytest.mark.parametrize("begins_at", [None, 0, 4])
def test_missing_values_that_the_model_fills_in_are_an_error_once_it_does_not(begins_at: int | None) -> None:
    def program() -> nn.Module:
        model = Fills()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(6):
            x = torch.randn(32, 8)
            x[0, 0] = torch.nan
            model.fills = begins_at is None or step < begins_at
            optimizer.zero_grad()
            model(x).square().nanmean().backward()
            optimizer.step()
        return model

    findings = found(program)
    assert findings["HK002"].severity == ("info" if begins_at is None else "error")
    assert findings["HK002"].message.endswith("(step 4)") == (begins_at == 4)
    assert ("HK003" in findings) == (begins_at is not None)


class Fills(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fills, self.layer = True, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x.nan_to_num() if self.fills else x)
        return y


def test_the_first_and_the_largest_findings_stay_with_their_step_and_causes_come_before() -> None:
    """Large outputs in step 2 alone, and in step 4 a gradient whose update leaves NaN in a weight."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(x)

    def program() -> nn.Module:
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        for step in range(7):
            first, second = model(torch.randn(32, 8) * (1e6 if step == 2 else 1.0))
            optimizer.zero_grad()
            (first.square().mean() + second.nan_to_num().square().mean()).backward()
            if step == 4:
                model.b.weight.grad[0, 0] = torch.nan
            optimizer.step()
        return model

    findings = found(program)
    assert findings["HK016"].message.endswith("65504 (step 2)")
    assert findings["HK004"].message == "1 of 32 values of its gradient are NaN (step 4)"
    assert findings["HK004"].cause == ""
    assert findings["HK005"].message == "1 of 32 values are NaN; the update of step 4 made them so (step 5)"
    assert "--first-bad" in findings["HK005"].remedy
    assert findings["HK003"].cause == "HK005 b.weight"


@pytest.mark.parametrize(
    ("how", "every", "place", "words"),
    [
        ("forward", 1, "1.running_mean", "a forward made them so between step 4 and step 5"),
        ("after", 1, "0.weight", "they became so after the update of step 4"),
        ("after", 3, "0.weight", "they became so after the update of step 3, before step 6"),
        ("frozen", 1, "0.bias", "they became so between step 4 and step 5"),
        ("gradient", 1, "0.weight", "1 of 32 values are NaN; the update of step 4 made them so (step 5)"),
        ("update", 1, "0.weight", "the update of step 4 made 32 of 32 values NaN or infinite"),
        ("", 1, "", ""),
    ],
)
def test_what_made_tensors_nan_is_said_as_far_as_it_is_known(how: str, every: int, place: str, words: str) -> None:
    def program() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        model[0].bias.requires_grad_(False)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-3)
        for step in range(7):
            optimizer.zero_grad()
            model(torch.randn(32, 8)).square().mean().backward()
            if how == "gradient" and step == 4:
                model[0].weight.grad[0, 0] = torch.nan
            optimizer.param_groups[0]["lr"] = math.inf if how == "update" and step == 4 else 1e-3
            optimizer.step()
            with torch.no_grad():
                if how == "forward" and step == 4:
                    model(torch.full((32, 8), math.inf))
                elif how in ("after", "frozen") and step == 4:
                    (model[0].weight if how == "after" else model[0].bias)[0] = torch.nan
        return model

    finding = found(program, every=every).get("HK005")
    assert (finding.fqn if finding else "") == place
    assert finding is None or words in finding.message


def test_weights_that_a_run_begins_with_are_the_checkpoints() -> None:
    def program() -> nn.Module:
        model = net()
        with torch.no_grad():
            model[3].bias[0] = torch.nan
        return trained(model, torch.optim.SGD(model.parameters(), 0.1), 2)

    finding = found(program)["HK005"]
    assert finding.message.startswith("1 of 3 values are NaN") and "made them so" not in finding.message
    assert "checkpoint" in finding.remedy


def test_a_model_with_a_part_without_a_hash_is_left_out_and_the_others_are_recorded() -> None:
    class Unhashable(nn.Linear):
        __hash__ = None  # type: ignore[assignment]

    odd = nn.Sequential(nn.Linear(8, 8), Unhashable(8, 8))
    model = net()

    def program() -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(odd(torch.randn(4, 8))).sum().backward()
            optimizer.step()

    seen = observed(program, check=True)
    assert [(step.model, step.step) for step in seen.recorded] == [("Sequential", number) for number in range(3)]
