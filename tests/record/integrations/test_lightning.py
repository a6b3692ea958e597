"""HookcliCallback in Lightning's Trainer: the record says what a loop of one's own and Lightning say."""

from __future__ import annotations

import pickle
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from documentation.pages import executed
from record.integrations.own_loop import assert_recorded, nothing_left, recorded_steps, train
from support import Later, equal, swept
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from hookcli.errors import UsageError
from hookcli.record.file.ranks.ranked_record import read_ranks
from hookcli.record.file.reading import read_record

nets, lightning = Later("record.integrations.lightning_nets"), Later("hookcli.record.integrations.lightning")
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.xdist_group("Lightning"),
]


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    return lightning.HookcliCallback(every=2)


def by(accumulated: int, epochs: int = 2) -> list[list[Any]]:
    one = list(nets.batches())
    return [one[at : at + accumulated] for _ in range(epochs) for at in range(0, len(one), accumulated)]


def plain_loss(model: nn.Module, batch: Any) -> Tensor:
    return nets.loss_of(model, batch)


def accumulated_loss(model: nn.Module, batch: Any) -> Tensor:
    return nets.loss_of(model, batch) / 2


def bfloat16_loss(model: nn.Module, batch: Any) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return nets.loss_of(model, batch)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "accumulated", "loss", "settings"),
    [
        ("Net", 1, plain_loss, {}),
        swept("Net", 2, accumulated_loss, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.05}),
        ("Manual", 1, plain_loss, {}),
        swept("Net", 1, bfloat16_loss, {"precision": "bf16-mixed"}),
    ],
    ids=["automatic", "accumulating", "manual", "bfloat16"],
)
def test_the_record_tells_what_a_loop_of_ones_own_sees(
    watching: Any, kind: str, accumulated: int, loss: Any, settings: dict[str, Any]
) -> None:
    model, plain, own = getattr(nets, kind)(), getattr(nets, kind)(), nets.Net()
    with nothing_left(model):
        trainer = nets.fit(model, watching, **settings)
    nets.fit(plain, **settings)
    assert equal(model.state_dict(), plain.state_dict())

    optimizer = nets.adam(own)
    clip = settings.get("gradient_clip_val", float("inf"))
    steps = train(
        own.train(), optimizer, by(accumulated), loss, lambda: nn.utils.clip_grad_norm_(own.parameters(), clip)
    )
    assert equal(dict(own.named_parameters()), dict(model.named_parameters()))

    path = watching.recording.path
    found = recorded_steps(path, kind)
    assert list(found) == list(range(0, trainer.global_step, 2)) and len(steps) == trainer.global_step
    for number, recorded in found.items():
        assert_recorded(recorded, steps[number])
        assert recorded.forwards == accumulated and recorded.seconds
        logged = model.logged[number * accumulated : (number + 1) * accumulated]
        assert [loss * accumulated for loss in recorded.losses] == pytest.approx(logged, rel=1e-6)
    [ran] = read_record(path).end.models
    assert (ran["steps"], ran["forwards"]) == (trainer.global_step, len(model.logged))
    assert ran["no_grad_forwards"] == 2 + 2 * 2  # the sanity check's, then each epoch's


@pytest.mark.sweep
def test_two_models_have_steps_of_their_own(watching: Any) -> None:
    model, own = nets.Gan(), nets.Gan()
    trainer = nets.fit(model, watching)
    with_critic, with_maker = own.configure_optimizers()

    def against_critic(maker: nn.Module, batch: Any) -> Tensor:
        judged = own.critic(batch[0])
        with_critic.zero_grad()
        binary_cross_entropy_with_logits(judged, torch.ones_like(judged)).backward()
        with_critic.step()
        judged = own.critic(maker(batch[0]))
        return binary_cross_entropy_with_logits(judged, torch.zeros_like(judged))

    steps = train(own.maker, with_maker, by(1), against_critic)
    assert equal(own.state_dict(), model.state_dict())
    found = recorded_steps(watching.recording.path, "Gan.maker")
    looked_at = list(range(0, len(steps), 2))
    assert list(found) == looked_at
    assert list(recorded_steps(watching.recording.path, "Gan.critic")) == [
        *looked_at,
        len(steps),
    ]  # the maker's last pass
    for number, recorded in found.items():
        assert_recorded(recorded, steps[number])
    models = {ran["model"]: ran["steps"] for ran in read_record(watching.recording.path).end.models}
    assert models == {"Gan.critic": len(steps), "Gan.maker": len(steps)}
    assert trainer.global_step == 2 * len(steps)  # Lightning counts those of all optimizers


@pytest.mark.sweep
@pytest.mark.parametrize("error", [KeyError("lost"), KeyboardInterrupt()], ids=["exception", "Ctrl-C"])
def test_an_exception_ends_the_record(watching: Any, error: BaseException) -> None:
    model = nets.Fails()
    model.error = error
    ignored = signal.getsignal(signal.SIGINT)
    try:
        with nothing_left(model), pytest.raises((KeyError, SystemExit)):
            nets.fit(model, watching)
    finally:
        signal.signal(signal.SIGINT, ignored)  # Lightning ignores Ctrl-C from then on
    end = read_record(watching.recording.path).end
    assert end.exit_code == 1 and end.error.startswith(type(error).__name__)
    assert [ran["steps"] for ran in end.models] == [2]


@pytest.mark.sweep
def test_each_rank_records_its_part(watching: Any, tmp_path: Path) -> None:
    if torch.get_num_threads() > 1:
        pytest.skip("the ranks are forks, and OpenMP's threads, which have begun by now, are not in them")
    nets.fit(nets.Net(), watching, strategy="ddp_fork", devices=2)
    record = read_ranks(tmp_path / "Net.run")
    assert list(record.parts) == [0, 1] and not list(tmp_path.glob("*.jsonl"))
    [ran] = record.end.models
    assert ran["model"] == "Net" and ran["steps"] == 2 * 3  # each rank has half of the batches
    for rank in (0, 1):
        assert list(recorded_steps(tmp_path / "Net.run" / f"rank{rank}.jsonl", "Net")) == [0, 2, 4]


def test_each_training_has_a_record_that_is_told_once(watching: Any, capfd: Any) -> None:
    model = nets.Net()
    for name in ("Net.run.jsonl", "Net-2.run.jsonl"):
        capfd.readouterr()
        nets.fit(model, watching, max_epochs=1)
        said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("hookcli")]
        assert watching.recording.path == Path.cwd() / name
        assert said == [f"hookcli: recording the training; see it with: hookcli show {Path.cwd() / name}"]
    assert watching.recording.reports()[0].probe == "activations"
    assert pickle.loads(pickle.dumps(watching)).recording is None


def test_a_record_that_cant_be_made_is_no_reason_to_lose_a_training(tmp_path: Path, capfd: Any) -> None:
    callback = lightning.HookcliCallback(output=tmp_path / "no" / "run.jsonl")
    assert nets.fit(nets.Net(), callback, max_epochs=1).global_step == 6
    assert callback.recording is None
    assert "no/run.jsonl: No such file or directory; the training is not recorded" in capfd.readouterr().err


def test_wrong_settings_are_told() -> None:
    with pytest.raises(TypeError, match="evry"):
        lightning.HookcliCallback(evry=3)
    with pytest.raises(UsageError, match="every 0 steps"):
        nets.fit(nets.Net(), lightning.HookcliCallback(every=0))


@pytest.mark.parametrize("installed", [True, False])
def test_the_older_name_of_lightning_and_none(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.delitem(sys.modules, "hookcli.record.integrations.lightning")
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    if not installed:
        monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
        with pytest.raises(ImportError, match=r"pip install 'hookcli\[lightning\]'"):
            import_module("hookcli.record.integrations.lightning")
        return
    callback = import_module("hookcli.record.integrations.lightning").HookcliCallback
    assert issubclass(callback, import_module("pytorch_lightning").Callback)


def test_the_example_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = executed("docs/run.md", lambda code: "lightning" in code or "import torch" in code)
    program["fit"](nets.Net(), nets.batches())
    assert [record.name for record in tmp_path.rglob("*.run.jsonl")]
