"""HookcliCallback in the Trainer of Hugging Face: the record says what a loop of one's own and the Trainer say."""

from __future__ import annotations

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

from hookcli.record import model_recording
from hookcli.record.file.reading import read_record
from hookcli.system.torchrun import World

transformers, huggingface = Later("transformers"), Later("hookcli.record.integrations.huggingface")
pytestmark = pytest.mark.xdist_group("timm and Transformers")
NAME = "GPT2LMHeadModel"
STEPS, ROWS = 5, 2


def small() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 19, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_inner": 16}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropouts, **ends))


def sentences() -> list[dict[str, Tensor]]:
    ids = torch.randint(19, (32, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in ids]


def trainer_of(model: nn.Module, folder: Path, *callbacks: Any, kind: Any = None, **settings: Any) -> Any:
    plain = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
    training = {
        "max_steps": STEPS,
        "per_device_train_batch_size": ROWS,
        "train_sampling_strategy": "sequential",
        "lr_scheduler_type": "constant",
        "learning_rate": 0.01,
        "optim": "adamw_torch",
        "max_grad_norm": 0.1,
    }
    arguments = transformers.TrainingArguments(folder / "out", **plain, **(training | settings))
    kind = kind or transformers.Trainer
    return kind(model, arguments, train_dataset=sentences(), eval_dataset=sentences()[:4], callbacks=list(callbacks))


def accumulated(model: nn.Module, rows: list[Any], of: int, bfloat16: bool) -> Tensor:
    """The Trainer's loss of a batch: the sum over its tokens, by the number of labels in all batches of the step."""
    ids = torch.stack([row["input_ids"] for row in rows])
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        return model(input_ids=ids, labels=ids, num_items_in_batch=torch.tensor(of * ids.numel())).loss


@pytest.mark.parametrize(("of", "bfloat16"), [(1, False), swept(2, False), swept(2, True)])
def test_the_record_tells_what_a_loop_of_ones_own_sees(tmp_path: Path, of: int, bfloat16: bool, capfd: Any) -> None:
    model, plain, own = small(), small(), small()
    callback = huggingface.HookcliCallback(every=2, output=tmp_path / "run.jsonl")
    settings = {"gradient_accumulation_steps": of, "bf16": bfloat16, "eval_strategy": "steps", "eval_steps": 2}
    trainer = trainer_of(model, tmp_path, callback, **settings)
    with nothing_left(model):
        trainer.train()
    trainer_of(plain, tmp_path, **settings).train()
    assert equal(model.state_dict(), plain.state_dict())
    assert capfd.readouterr().err.count("hookcli: recording the training") == 1

    rows = sentences()
    batches = [rows[at : at + ROWS] for at in range(0, of * ROWS * STEPS, ROWS)]
    optimizer = torch.optim.AdamW(own.parameters(), lr=0.01, weight_decay=0.0)
    steps = train(
        own.train(),
        optimizer,
        [batches[at : at + of] for at in range(0, len(batches), of)],
        lambda model, batch: accumulated(model, batch, of, bfloat16),
        lambda: nn.utils.clip_grad_norm_(own.parameters(), 0.1),
    )
    assert equal(dict(own.named_parameters()), dict(model.named_parameters()))

    found = recorded_steps(callback.recording.path, NAME)
    assert list(found) == [0, 2, 4] and len(steps) == trainer.state.global_step
    logged = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    if bfloat16:  # accelerate returns a copy of the logits in float32, which the loss is not made of
        for step in steps:
            step.output_grads.pop(("", '["logits"]'))
    for number, recorded in found.items():
        assert_recorded(recorded, steps[number])
        assert recorded.forwards == of and recorded.seconds
        assert sum(recorded.losses) == pytest.approx(logged[number + 1], rel=1e-6)
    evaluated = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    [ran] = read_record(callback.recording.path).end.models
    assert (ran["steps"], ran["forwards"], ran["no_grad_forwards"]) == (STEPS, of * STEPS, len(evaluated))
    without_grad = recorded_steps(callback.recording.path, NAME, "no_grad")
    assert without_grad and without_grad.keys() <= evaluated.keys()
    for number, recorded in without_grad.items():
        [loss] = [row for row in recorded.reports[0].rows if (row.fqn, row["path"]) == ("", '["loss"]')]
        assert loss["mean"] == pytest.approx(evaluated[number], rel=1e-6)


def failing() -> type:
    """A Trainer whose third step fails."""

    class Fails(transformers.Trainer):  # type: ignore[misc]
        def compute_loss(self, *arguments: Any, **settings: Any) -> Any:
            if self.state.global_step == 2:
                raise KeyError("lost")
            return super().compute_loss(*arguments, **settings)

    return Fails


def test_an_exception_ends_the_record_of_a_with_block(tmp_path: Path) -> None:
    model = small()
    callback = huggingface.HookcliCallback(every=2, output=tmp_path / "run.jsonl")
    with nothing_left(model), pytest.raises(KeyError), callback:
        trainer_of(model, tmp_path, callback, kind=failing()).train()
    end = read_record(callback.recording.path).end
    assert (end.exit_code, end.error) == (1, "KeyError: 'lost'")
    assert [ran["steps"] for ran in end.models] == [2]


@pytest.mark.sweep
def test_the_next_training_ends_a_record_of_whose_end_nobody_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = small()
    callback = huggingface.HookcliCallback(every=2)
    with nothing_left(model):
        with pytest.raises(KeyError):
            trainer_of(model, tmp_path, callback, kind=failing()).train()
        first = callback.recording.path
        assert read_record(first).end is None
        trainer_of(model, tmp_path, callback).train()
    assert [ran["steps"] for ran in read_record(first).end.models] == [2]
    assert callback.recording.path.name == f"{NAME}-2.run.jsonl"
    assert [ran["steps"] for ran in read_record(callback.recording.path).end.models] == [STEPS]


def test_another_rank_than_the_first_records_its_part_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_recording, "joined_world", lambda: World(1, 2))
    callback = huggingface.HookcliCallback()
    trainer_of(small(), tmp_path, callback, max_steps=1).train()
    assert callback.recording.path == tmp_path / f"{NAME}.run" / "rank1.jsonl"
    header = read_record(callback.recording.path).header
    assert (header.rank, header.ranks) == (1, 2) and "recording the training" not in capfd.readouterr().err


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hookcli.record.integrations.huggingface")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'hookcli\[huggingface\]'"):
        import_module("hookcli.record.integrations.huggingface")


@pytest.mark.sweep
def test_the_example_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = executed("docs/run.md", lambda code: "transformers" in code or "import torch" in code)
    program["fine_tune"](small(), sentences())
    assert [record.name for record in tmp_path.rglob("*.run.jsonl")]
