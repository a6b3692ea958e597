"""What rounding costs the tensors of recorded steps, against what plain hooks saw in the same steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from capabilities.formats.by_hand import agrees, right
from observing import observed, report
from records import HEADER, save
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.formats.headline import headline
from hookcli.capabilities.formats.layout import FORMATS, formats_named
from hookcli.capabilities.formats.lines import Rounding
from hookcli.errors import UsageError
from hookcli.record.file.reading import read_record

STEPS = 4
Seen = dict[tuple[int, str, str], Tensor]


def net() -> nn.Module:
    """Its first layer gets a channel that is far larger than the others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 4))
    model[0].weight.data[7] = 300.0
    return model


def train(seen: Seen | None = None, *, evaluate: bool = False) -> nn.Module:
    """Train for some steps; `seen` gets the weights, the inputs and the gradients of the layers in each step."""
    model, generator = net(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    step = 0

    def look(name: str) -> None:
        def enter(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
            assert seen is not None
            seen[step, name, "weight"], seen[step, name, "input"] = layer.weight.detach().clone(), args[0].detach()

        def leave(layer: nn.Module, args: object, output: Tensor) -> None:
            output.register_hook(lambda grad: seen.update({(step, name, "gradient"): grad.clone()}))

        layer = model.get_submodule(name)
        layer.register_forward_pre_hook(enter)
        layer.register_forward_hook(leave)

    for name in ("1", "3") if seen is not None else ():
        look(name)
    for number in range(STEPS):
        step = number
        optimizer.zero_grad()
        x, y = torch.randn(16, 32, generator=generator), torch.randint(4, (16,), generator=generator)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    if evaluate:
        with torch.no_grad():
            model(torch.ones(2, 32))
    return model


def test_figures_of_steps_are_those_of_what_plain_hooks_saw() -> None:
    by_hand = Seen()
    train(by_hand)
    recorded = observed(train, formats="int8,mxfp4").of()
    assert [step.step for step in recorded] == [*range(STEPS)]
    for step in recorded:
        rows = {(step.step, row.fqn, row["kind"]): row for row in report(step, "formats").rows}
        assert rows.keys() == {place for place in by_hand if place[0] == step.step}
        for place, row in rows.items():
            assert agrees(row, right(by_hand[place], "int8") | right(by_hand[place], "mxfp4")), place
            assert row["shape"] == [*by_hand[place].shape]


def test_gradients_under_a_grad_scaler_are_rounded_as_they_arrive_and_a_note_says_so() -> None:
    """A plain hook sees gradients of 1,024 times the loss."""
    seen: dict[str, Tensor] = {}

    def scaled() -> nn.Module:
        model = net()
        optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-3), torch.amp.GradScaler("cpu", init_scale=1024.0)

        def leave(layer: nn.Module, args: object, output: Tensor) -> None:
            output.register_hook(lambda grad: seen.update({"3": grad.clone()}))

        model[3].register_forward_hook(leave)
        loss = F.cross_entropy(model(torch.ones(16, 32)), torch.zeros(16, dtype=torch.long))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return model

    [step] = observed(scaled, formats="float16").of()
    shown = report(step, "formats")
    [row] = [row for row in shown.rows if (row.fqn, row["kind"]) == ("3", "gradient")]
    assert agrees(row, right(seen["3"], "float16"))
    assert seen["3"].abs().max() > 10
    assert {note for note in step.notes if "GradScaler" in note} == {
        "statistics of gradients of outputs are divided by the GradScaler's scale, 1024",
        "gradients were rounded as they arrived, scaled by the GradScaler's 1024",
    }
    plain = observed(train, formats="float16").of()[0]
    assert not any("GradScaler" in note for note in plain.notes)


def test_nothing_is_measured_unless_asked_for_and_no_gradients_without_a_backward() -> None:
    assert not any(one.probe == "formats" for step in observed(train).of() for one in step.reports)
    seen = observed(lambda: train(evaluate=True), formats="int4", no_grad=1)
    [plain] = seen.of(phase="no_grad")
    assert {row["kind"] for row in report(plain, "formats").rows} == {"weight", "input"}
    assert [line.step for line in seen.of_parts if isinstance(line, Rounding)] == [*range(STEPS)]


def test_the_first_line_of_a_record_says_what_loses_too_much(tmp_path: Path) -> None:
    seen = observed(train, formats="bfloat16,mxfp4")
    record = read_record(save(tmp_path / "a.jsonl", [HEADER, *seen.recorded, *seen.of_parts]))
    [line] = headline(record)
    start = "Sequential, step 3: mxfp4 keeps only "
    assert line.startswith(start) and "of layer 1 (input) outside channel 7, the largest" in line
    fine = observed(train, formats="bfloat16")
    assert headline(read_record(save(tmp_path / "b.jsonl", [HEADER, *fine.recorded, *fine.of_parts]))) == []


def test_layers_of_compiled_modules_have_their_weights_and_the_reason_for_no_more() -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
        model[1].compile(backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()

    shown = report(observed(program, formats="int8").of()[-1], "formats")
    assert [row["kind"] for row in shown.rows if row.fqn == "1.0"] == ["weight"]
    assert [item.fqn for item in shown.skipped if "torch.compile" in item.reason] == ["1.0"]


def test_what_no_hook_sees_has_no_rows_and_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> None:
        weight = torch.ones(4, 4, requires_grad=True)
        optimizer = torch.optim.SGD([weight], 1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            (weight @ torch.ones(4)).sum().backward()
            optimizer.step()

    seen = observed(program, formats="int8")
    assert [[one.probe for one in step.reports if one.probe == "formats"] for step in seen.of()] == [[], []]
    assert "formats" not in capsys.readouterr().err
    assert not [line for line in seen.of_parts if isinstance(line, Rounding)]


def test_unknown_formats_are_refused() -> None:
    assert list(formats_named("nvfp4, int8")) == ["int8", "nvfp4"] and list(formats_named("all")) == [*FORMATS]
    for text in ("fp4", "", "int8,fp4"):
        with pytest.raises(UsageError, match="--formats"):
            formats_named(text)
