"""Steps of several models and optimizers, and what narrows them."""

from __future__ import annotations

import pytest
import torch
from observing import observed, observing, rows
from record.observe.programs import net, training
from support import assert_stats, float64_stats, swept
from torch import Tensor, nn


@pytest.mark.sweep
@pytest.mark.parametrize("kept", [True, False])
def test_steps_go_on_where_another_optimizer_takes_over(kept: bool) -> None:
    """First the head alone is trained, then all of it: by another optimizer, beside which the first may live on."""

    alive: list[object] = []

    def program() -> nn.Module:
        model = net()
        first = torch.optim.SGD(model[2].parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            first.step()
        alive[:] = [first] if kept else []
        del first
        second = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            second.step()
        return model

    seen = observed(program, every=2)
    assert seen.steps() == [0, 2, 4, 6] and seen.ran["Sequential"].steps == 7


@pytest.mark.sweep
def test_parameters_that_an_optimizer_gets_later() -> None:
    def program() -> tuple[nn.Module, nn.Module]:
        body, head = nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 2))
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        for number in range(4):
            if number == 2:
                optimizer.add_param_group({"params": list(body.parameters())})
            head(body(torch.ones(2, 4))).sum().backward()
            optimizer.step()
        return body, head

    seen = observed(program)
    assert seen.steps("Linear") == seen.steps("Sequential") == [0, 1, 2, 3]
    moved = [any(r.probe == "updates" for r in recorded.reports) for recorded in seen.of("Linear")]
    assert moved == [False, False, True, True] and seen.recorded[-1].notes == []


def test_tensors_that_are_no_module_s() -> None:
    def program() -> Tensor:
        z = torch.full((4,), 2.0, requires_grad=True)
        optimizer = torch.optim.SGD([z], lr=0.25)
        for _ in range(3):
            optimizer.zero_grad()
            z.pow(2).sum().backward()
            optimizer.step()
        return z.detach()

    seen = observed(program)
    name = "parameters of SGD"
    assert seen.ran.keys() == {name} and seen.ran[name].steps == 3 and seen.steps() == [0, 1, 2]
    for recorded, z in zip(seen.recorded, (2.0, 1.0, 0.5), strict=True):  # each step halves it
        assert (rows(recorded, "updates")["0"]["weight"], rows(recorded, "updates")["0"]["update"]) == (z * 2, z)
        assert rows(recorded, "grads", "parameter")["0"].stats.l2 == z * 4  # type: ignore[union-attr]


@pytest.mark.sweep
def test_parts_that_the_program_removes_before_their_gradients_arrive() -> None:
    def program() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3).eval(), nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            loss = model(torch.ones(2, 4)).sum()
            del model[1:]
            loss.backward()
            optimizer.step()
        return model

    first, second = observed(program).recorded
    assert rows(first, "grads", "output").keys() == {"", "0", "1", "2"}
    assert rows(second, "grads", "output").keys() == {"", "0"}


@pytest.mark.sweep
def test_a_loss_whose_gradients_are_sparse_is_known() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(2).to_sparse_csr())
            self.table = nn.Embedding.from_pretrained(torch.ones(3, 2), freeze=False, sparse=True)

        def forward(self) -> Tensor:
            return torch.sparse.mm(self.weight, self.table(torch.tensor([0, 0])).T)

    def program() -> list[float]:
        model, losses = Net(), []
        for factor in (1, 2):
            loss = factor * model().sum()
            loss.backward()
            losses.append(loss.item())
        return losses

    assert [recorded.loss for recorded in observed(program).recorded] == program() == [4, 8]


@pytest.mark.sweep
def test_a_step_of_two_optimizers_is_one() -> None:
    def program() -> nn.Module:
        model = net()
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model[0], model[2])]
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
        return model

    seen = observed(program)
    assert seen.steps() == [0, 1, 2, 3] and seen.ran["Sequential"].steps == 4


@pytest.mark.sweep
def test_steps_of_models_of_one_name_are_added_up() -> None:
    def program() -> None:
        for _ in range(19):
            model = nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()

    seen = observed(program, every=2)
    assert seen.ran["Linear"].steps == 2 and seen.ran["Linear (further ones)"].steps == 3 * 2


@pytest.mark.sweep
@pytest.mark.parametrize("probes", [("activations",), ("grads",)])
def test_a_pass_is_of_the_models_that_it_goes_through(probes: tuple[str, ...]) -> None:
    def program() -> list[nn.Module]:
        models = [net(), net()]
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
        losses = [model(torch.ones(2, 4)).sum() * 0 + number for number, model in enumerate(models)]
        for loss in losses:
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return models

    assert [list(w.losses) for w in observed(program, probes=probes).recorded] == [[0], [1]]


@pytest.mark.sweep
def test_losses_of_accumulated_gradients_are_all_of_the_step() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for number in range(3):
                (model(torch.ones(2, 4)).sum() * 0 + number).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    assert [list(w.losses) for w in observed(program).recorded] == [[0, 1, 2]] * 2


@pytest.mark.sweep
@pytest.mark.parametrize("probes", [("activations",), ("grads",), ("updates",), ("inputs", "updates")])
def test_probes(probes: tuple[str, ...]) -> None:
    seen = observed(training(3), probes=probes, every=2)
    assert seen.steps() == [0, 2]
    assert all([r.probe for r in recorded.reports] == list(probes) for recorded in seen.recorded)
    assert all(len(recorded.losses) == 1 for recorded in seen.recorded)


def test_inputs() -> None:
    def program() -> None:
        net()(torch.arange(4.0).view(1, 4))

    recorded = observed(program, probes=("inputs",)).only
    for fqn in ("", "0"):
        row = next(row for name, row in rows(recorded, "inputs").items() if row.fqn == fqn)
        assert_stats(row.stats, float64_stats(torch.arange(4.0)))


@pytest.mark.sweep
def test_of_many_forwards_in_one_step_the_first_are_looked_at() -> None:
    def program() -> None:
        model = nn.RNNCell(2, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        h = torch.zeros(1, 3)
        for _ in range(70):
            h = model(torch.ones(1, 2), h)
        h.sum().backward()
        optimizer.step()

    recorded = observed(program).only
    assert (recorded.forwards, recorded.observed_forwards) == (70, 64)
    assert rows(recorded, "activations")[""]["calls"] == 64


def test_parts_that_are_called_by_themselves_are_models_of_their_own() -> None:
    """Here some of the model's parameters are in no optimizer."""

    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD([*model[0].parameters(), model[2].weight], lr=0.1)
        model[2](model[1](model[0](torch.ones(2, 4)))).sum().backward()
        optimizer.step()
        return model

    seen = observed(program)
    assert [w.model for w in seen.recorded] == ["Sequential.0", "Sequential.2"] and seen.others == {"ReLU": 1}
    assert [set(rows(w, "updates")) for w in seen.recorded] == [{"weight", "bias"}, {"weight"}]


def test_a_model_that_calls_itself() -> None:
    class Recursive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor, depth: int = 2) -> Tensor:
            return self(self.layer(x), depth - 1) if depth else x

    def program() -> Tensor:
        return Recursive()(torch.ones(1, 2))

    seen = observed(program)
    assert seen.ran["Recursive"].forwards == 1 and rows(seen.only, "activations")["layer"]["calls"] == 2


@pytest.mark.sweep
def test_a_model_that_is_new_in_each_turn_is_summed_up() -> None:
    def program() -> None:
        for _ in range(20):
            nn.Linear(2, 2)(torch.ones(1, 2))

    seen = observed(program)
    assert len(seen.ran) == 17 and seen.ran["Linear (further ones)"].forwards == 4
    assert len(seen.recorded) == 20


@pytest.mark.parametrize("trained", [swept(True), False])
def test_models_made_in_a_loop_are_recorded_like_steps_of_one_model(trained: bool) -> None:
    with observing(every=10) as seen:
        for _ in range(16 + 25):
            model = nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            if trained:
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            else:
                with torch.no_grad():
                    model(torch.ones(1, 2))
            del model, optimizer
    of_others = [step for step in seen.recorded if step.model == "Linear (further ones)"]
    assert len(seen.recorded) == 16 + 3 and len(of_others) == 3 and len(seen.ran) == 17
    assert not trained or [step.step for step in of_others] == [0, 10, 20]
