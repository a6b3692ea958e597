"""What stands at the end of a run: whole texts beside the figures that they must hold."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from records import HEADER, activation, bad, end, ran, recorded_step, save
from support import swept

from hookcli.checks.judgement import Judgement
from hookcli.checks.measurements import Measurements
from hookcli.checks.training import UpdateTooLarge
from hookcli.record.file.reading import read_record
from hookcli.record.file.record_lines import UNSEARCHED, End, NonFinite, RecordedStep, StepLosses
from hookcli.record.file.views.run_lines import non_finite_line, ran_line
from hookcli.record.file.views.summary import summary
from hookcli.table import Column, Finding, Report, TensorStats
from hookcli.table.grouping import View
from hookcli.table.losses import LossCourse, faults, jumps

GOLDEN = Path(__file__).parents[3] / "golden"
LOSSES = [*(2 / (1 + step) for step in range(201)), *[None] * 99]
LATEST = {
    ("Net", "train"): recorded_step(200, std=2.0),
    ("Net", "no_grad"): recorded_step(100, phase="no_grad", forward=2),
}


def text(
    ended: End,
    latest: Mapping[tuple[str, str], RecordedStep] = LATEST,
    width: int | None = 80,
    *,
    bad: Sequence[NonFinite] = (),
    losses: Sequence[float | None] = (),
    named: str = "train.run.jsonl",
    checked: bool = False,
    faults_only: bool = False,
    **view: Any,
) -> str:
    """The summary of a record with these last steps, and the losses of Net from its first step on."""
    lines = [HEADER, *latest.values(), StepLosses("Net", 0, losses), *bad, ended]
    with TemporaryDirectory() as folder:
        record = read_record(save(Path(folder) / "x", lines))
        shown = View(width=width, bars=width is not None, **view)
        return summary(record, record, named, shown, checked=checked, faults_only=faults_only)


TWO = end(
    [ran(recorded_steps=3), ran("Discriminator", steps=900, recorded_steps=9, parameters=2_765_568)],
    exit_code=1, error="ValueError: no such file", seconds=7205.0, others={"CrossEntropyLoss": 300},
)  # fmt: skip
NOTED = {
    **LATEST,
    ("Discriminator", "train"): recorded_step(800, model="Discriminator", notes=["gradients are unscaled"]),
}


@pytest.mark.sweep
@pytest.mark.parametrize("width", [80, 160])
def test_golden(width: int, request: pytest.FixtureRequest) -> None:
    found = text(TWO, NOTED, width, bad=[bad()], losses=LOSSES)
    file = GOLDEN / f"summary{width}.txt"
    if request.config.getoption("--golden"):
        file.write_text(found)
    assert found == file.read_text()


@pytest.mark.parametrize("width", [swept(80), swept(100), swept(160), None])
def test_the_figures_are_there_and_fit(width: int | None) -> None:
    found = text(TWO, NOTED, width, bad=[bad()], losses=LOSSES)
    assert "\x1b" not in found and found.endswith("\n") and not re.search(r"[ \t]\n", found)
    tables = [line for line in found.splitlines() if not line.startswith(("hookcli: ", "over time"))]
    assert width is None or max(map(len, tables)) <= width
    words = " ".join(found.split())
    assert words.startswith(
        "hookcli: first non-finite value: 12 NaN and 1 Inf in the output of body.1 (Net, step 100) "
        "hookcli: train.py: 900 steps of 2 models in 2 h 0 min, ValueError: no such file (exit code 1); "
        "12 recorded steps in train.run.jsonl"
    )
    (row,) = re.findall(r"^Net +11.69 M +(.*)$", found, re.MULTILINE)
    assert row.split() == ["300", "300", "40", "3", "2.000", f"{2 / 201:.6f}", "0.20", "s"]
    assert found.index("Net  ") < found.index("Discriminator  ")  # in the order of their first forwards
    assert words.count("12 NaN and 1 Inf") == 1
    assert words.count("gradients are unscaled") == 1 and "called outside any model: CrossEntropyLoss" in words
    assert "CrossEntropyLoss (300)" not in words  # some losses are unknown, and so may be calls
    assert "CrossEntropyLoss (300)" in text(TWO, NOTED, width, losses=[1.0] * 300)
    assert found.endswith("\nNext: hookcli show train.run.jsonl --over-time body.1\n")  # where it begins


@pytest.mark.parametrize("height", [16, swept(24), swept(40)])
def test_the_first_line_stays_on_the_screen(height: int) -> None:
    """With the command, a remark while it ran, the exit code and the prompt."""
    lost = [*[1.5] * 250, *[math.nan] * 50]
    value = NonFinite("Net", "train", 250, "", "loss", 1, 0, (), UNSEARCHED)
    step = {("Net", "train"): recorded_step(200)}
    shown = text(end(), step, losses=lost, bad=[value], checked=True, height=height)
    lines = shown.splitlines()
    assert lines[0] == "hookcli: Net: the loss was NaN from step 250 on (50 of 300 steps)" and len(lines) <= height - 4
    assert shown.count("NaN from step") == 1 and "loss is NaN" not in shown
    whole = "\nNet, last recorded step before the NaN · step 200 · loss" in shown
    assert whole == (height == 40) and whole != ("all modules and times: hookcli show train.run.jsonl" in lines)
    assert "--check would" not in shown and "\n--check would make the exit code 1\n" in text(end(), step, losses=lost)


def test_a_quiet_summary_says_what_is_wrong_and_nothing_else() -> None:
    step, lost = {("Net", "train"): recorded_step(200)}, [*[1.5] * 250, *[math.nan] * 50]
    line = "hookcli: Net: the loss was NaN from step 250 on (50 of 300 steps)\n"
    assert text(end(), step, losses=lost, faults_only=True) == line
    for checked in (False, True):
        assert text(end(), LATEST, losses=LOSSES[:200], checked=checked, faults_only=True) == ""


def test_a_step_that_was_not_finished_is_counted_as_such() -> None:
    stopped = end([ran(steps=37, forwards=38, recorded_steps=38)], program_steps=37)
    assert ran_line(HEADER, stopped, "x").endswith("; 38 recorded steps (1 unfinished) in x")
    assert "unfinished" not in ran_line(HEADER, end(), "x")


def test_the_run_has_its_first_and_last_loss_where_all_are_known() -> None:
    losses = [2 / (1 + step) for step in range(300)]

    def first(width: int | None, *models: dict[str, Any], known: Sequence[float | None] = losses) -> str:
        whole = text(end(list(models or [ran()])), width=width, losses=known, named="x").partition("\n\n")[0]
        return "hookcli: " + whole.split("hookcli: ")[-1]  # below a line on the loss

    steps, ended = "hookcli: train.py: 300 steps of 1 model in 41.2 s", ", exit code 0; 4 recorded steps in x"
    assert first(None) == f"{steps}, loss 2.000 → {2 / 300:.6f}{ended}"
    unfinished = [*losses[:-1], math.nan]
    assert "in 41.2 s, loss 2.000 → NaN, " in first(None, known=unfinished)
    assert first(None, known=[losses[0], None, *losses[2:]]) == f"{steps}, loss 2.000 → {2 / 300:.6f}{ended}"
    for known in (losses[:-1], [*losses[:-1], None], [None, *losses[1:]], []):
        assert first(None, known=known) == f"{steps}{ended}"
    assert "→" not in first(None, ran(), ran("Critic"))  # whose loss is not known
    narrow = first(120)  # where it takes no other line
    assert narrow.count("\n") == 0 and "→" in narrow
    assert first(90) == f"{steps}{ended}"


def test_a_short_run_is_short() -> None:
    found = text(end()).splitlines()
    assert found[:2] == [
        "hookcli: train.py: 300 steps of 1 model in 41.2 s, exit code 0; 4 recorded steps",
        "  in train.run.jsonl",
    ]
    assert len(found) <= 24 and found[-1] == "Next: hookcli report train.run.jsonl"
    (linear,) = [re.sub("[▁-▏]", " ", line).split() for line in found if line.startswith("  0 ")]
    assert linear == ["0", "Linear", "8x16", "-0.1000", "0.5000", "0", "0.1250", "5.000", "0.001000"]


def test_a_note_that_names_the_next_command_is_the_only_one_and_stands_last() -> None:
    found = text(end(notes=("Next: hookcli run --first-bad stop train.py", "a remark"))).splitlines()
    assert found[-2:] == ["a remark", "Next: hookcli run --first-bad stop train.py"]
    assert sum(line.startswith("Next: ") for line in found) == 1


def test_nothing_ran() -> None:
    assert text(end([], seconds=0.5), {}).splitlines() == [
        "hookcli: train.py: 0.50 s, exit code 0; 0 recorded steps in train.run.jsonl",
        "no module was called",
    ]
    assert "no module with parameters was called" in text(end([], others={"ReLU": 2}), {})
    assert "ReLU (2)" in text(end([], others={"ReLU": 2}), {})


def test_a_model_that_was_never_trained_or_never_looked_at() -> None:
    model = ran(steps=0, forwards=0, no_grad_forwards=40, recorded_steps=0, recorded_forwards=1)
    found = text(end([model]), {("Net", "no_grad"): recorded_step(phase="no_grad")}, None)
    assert found.startswith("hookcli: train.py: 40 forwards of 1 model in") and "1 recorded forward without" in found
    assert "Net · step 0 · no grad" in found
    unseen = text(end([ran(recorded_steps=0)]), {})
    assert "0 recorded steps" in unseen and unseen.endswith("\nNext: hookcli show train.run.jsonl\n")


def test_recorded_steps_and_forwards_are_counted_separately() -> None:
    found = ran_line(HEADER, end([ran(recorded_steps=3, recorded_forwards=2), ran("B", recorded_steps=1)]), "x")
    assert found.endswith("; 4 recorded steps and 2 forwards without gradients in x")
    table = text(end([ran(recorded_steps=3, recorded_forwards=2)]), width=None)
    assert "Recorded no grad" in table and "Recorded no grad" not in text(end([ran(no_grad_forwards=0)]), width=None)


def test_a_run_that_was_stopped_shows_the_rows_before_the_bad_one() -> None:
    """In the order in which they were measured, the bad one last, in place of its incomplete step."""
    names = ("head", "body.0", "body.1")  # not in the order of the model
    seen = [activation(fqn, "Linear", TensorStats(4, 1.0, nan=int(fqn == "body.1"))) for fqn in names]
    found = replace(bad(), reports=[Report("activations", "Net", (Column("fqn", "Layer"),), seen)])
    step = recorded_step(found.step)
    text_of = partial(text, end(), bad=[found], width=None)
    stopped = text_of({("Net", "train"): replace(step, complete=False)})
    _, _, table = stopped.partition("Net, step 100: the last rows measured, up to 'body.1'\n")
    assert [line.split()[0] for line in table.splitlines()[2:5]] == list(names) and "  0 " not in stopped
    went_on = text_of({("Net", "train"): step})
    assert went_on.index("the last rows measured, up to") < went_on.index("Net · step 100")


def test_a_model_of_many_layers_shows_both_ends() -> None:
    seen = [activation(f"m{n}", "Linear", TensorStats(4, float(n), 1.0, 0.0, 9.0, 3.0)) for n in range(50)]
    deep = RecordedStep("Net", "train", 0, [Report("activations", "Net", (), seen)])
    found = text(end(), {("Net", "train"): deep})
    assert "… 36 more …" in found
    assert [n for n in range(50) if re.search(rf"^m{n} ", found, re.MULTILINE)] == [*range(7), *range(43, 50)]


def test_many_models_are_named_in_part() -> None:
    models = [ran(f"Net #{n}", recorded_steps=0) for n in range(1, 31)]
    found = text(end(models), {})
    assert "Net #10" in found and "Net #11" not in found and "… and 20 more models" in found


@pytest.mark.parametrize("width", [66, 72])
def test_a_long_name_is_folded_between_its_words(width: int) -> None:
    name = "MaskedLanguageModelForPretraining"
    found = text(end([ran(name)]), {}, width)
    _, _, after = found.partition("─\n")
    pieces = [line.split()[0] for line in after.split("\n\n")[0].splitlines()]
    assert "".join(pieces) == name and len(pieces) > 1 and all(re.match("[A-Z][a-z]", piece) for piece in pieces)
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", found)


def test_the_verdicts_on_models_that_are_not_shown_are_told() -> None:
    names = [f"Net #{n}" for n in range(1, 7)]
    warned = Finding("HK014", "warning", "0", "lost")
    latest = {}
    for name in names:
        report = Judgement([warned] if name == "Net #5" else [], [], ["HK014"]).report(name, {})
        step = recorded_step(3, model=name)
        latest[name, "train"] = replace(step, reports=[*step.reports, report])
    found = text(end([ran(name) for name in names]), latest, checked=True).splitlines()
    assert sum("passed" in line for line in found) == 4
    assert found[-3:-1] == ["Net #5: 1 warning (HK014)", "the checks also passed on 2 more models: Net #4, Net #6"]
    alone = text(end([ran("Net #1")]), {key: latest[key] for key in [("Net #1", "train")]}, checked=True)
    assert "also" not in alone and "passed" in alone


def test_a_model_with_forwards_left_out_has_its_row() -> None:
    row = next(line for line in text(end([ran(left_out=2)])).splitlines() if line.startswith("Net "))
    assert row.split()[:3] == ["Net", "11.69", "M"]


def test_a_name_with_blanks_can_be_pasted() -> None:
    assert text(end(), named="my run.jsonl").endswith("\nNext: hookcli report 'my run.jsonl'\n")


def test_colour_only_where_it_is_asked_for() -> None:
    assert "\x1b[" in text(end(), color=True) and "\x1b[" not in text(end())


def test_lines() -> None:
    assert "no end is recorded" in ran_line(HEADER, None, "x")
    assert non_finite_line(bad()) == "first non-finite value: 12 NaN and 1 Inf in the output of body.1 (Net, step 100)"


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([2.0, *[1.0] * 9, 21.0, 500.0], "jumped to 21.00 at step 10, 10 times the highest before"),
        ([2.0, *[1.0] * 9, 20.0], ""),  # ten times, not more
        ([2.0, *[1.0] * 8, 21.0], ""),  # too few before it
        ([math.nan, *[1.0] * 9, 21.0], ""),
        ([math.inf, 2.0, *[1.0] * 9, 40.0], "jumped to 40.00 at step 11, 20 times the highest before"),
        ([-2.0, *[-1.0] * 12, 5.0], ""),  # losses below zero have no such measure
        ([1.5**n for n in range(40)], ""),  # rises all the time
    ],
)
def test_a_loss_jumps_if_it_is_ten_times_the_highest_of_ten(losses: list[float], said: str) -> None:
    course = LossCourse.of(dict(enumerate(losses)))
    assert course.jumps() == said and jumps({"Net": course}) == (said and f"Net: the loss {said}")


def course_of(losses: Sequence[float], updates: Mapping[int, tuple[float, float]]) -> LossCourse:
    """The course of losses, and of updates by step: their size in units of the weights, and the learning rate."""
    course = LossCourse.of(dict(enumerate(losses)))
    for step, (ratio, rate) in updates.items():
        course.updated(step, [{"ratio": 1e-3, "lr": 1e-3}, {"ratio": ratio, "lr": rate}])
    return course


@pytest.mark.parametrize(
    ("losses", "updates", "said"),
    [
        ([1.5, 5292.0, 9.0], {0: (82.0, 10.0)}, "from 1.500 to 5292 at step 1: the update at step 0 was 82 times"),
        (
            [1.5, 4.0, 16.0, 64.0],
            {0: (0.4, 1.0), 1: (1.5, 1.0)},
            "from 4.000 to 64.00 at step 3: the update at step 1 was 1.5 times",
        ),
        ([1e-9, 0.5, 0.4], {0: (1e-3, 1e-3)}, ""),  # a loss that begins at zero, as that of a policy
        ([1.5, 5292.0], {0: (0.5, 1.0)}, ""),  # a batch that is far out
        ([1.5, 5292.0], {0: (math.inf, 1.0)}, ""),  # weights that were zero
        ([1.5, 4.0, 1.0], {0: (3.0, 1.0)}, ""),
    ],
)
def test_an_update_larger_than_the_weights_that_ruins_the_loss(
    losses: Sequence[float], updates: Mapping[int, tuple[float, float]], said: str
) -> None:
    course = course_of(losses, updates)
    rate = f"{max(updates.values())[1]:g}"
    assert course.jumps() == (said and f"went {said} the weights, by a learning rate of {rate}")
    findings = list(UpdateTooLarge().judge(Measurements(losses=course)))  # type: ignore[arg-type]
    assert [(one.check, one.severity) for one in findings] == ([("HK055", "error")] if said else [])


def test_a_loss_that_comes_back_is_a_warning_and_one_that_is_lost_names_what_came_before() -> None:
    (finding,) = UpdateTooLarge().judge(Measurements(losses=course_of([1.5, 99.0, 1.0], {0: (2.0, 1.0)})))  # type: ignore[arg-type]
    assert finding.severity == "warning"
    lost = course_of([1.5, 99.0, math.nan], {0: (2.0, 1.0)})
    before = "before, it went from 1.500 to 99.00 at step 1: the update at step 0 was 2 times the weights"
    assert f"the loss was NaN from step 2 on (1 of 3 steps); {before}" in faults({"Net": lost})


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ({0: 1.5, 1: 90.0}, " (mean of the ranks; 90.00 on rank 1)"),
        ({0: 21.0, 1: 1.0, 7: 90.0}, " (mean of the ranks; on ranks 0, 7)"),
        ({0: 90.0, 1: 90.0}, ""),
    ],
)
def test_a_loss_that_jumped_on_some_ranks_names_them(ranks: dict[int, float], said: str) -> None:
    course = LossCourse.of(dict(enumerate([2.0, *[1.0] * 9, 45.75])))
    course.found_on(ranks)
    assert course.jumps() == f"jumped to 45.75 at step 10{said}, 23 times the highest before"


@pytest.mark.parametrize(
    ("counts", "first", "losses", "shown"),
    [
        ({"steps": 4}, 0, [3.5, 2.5, 1.5, 1.25], ("3.500", "1.250")),
        ({"steps": 4}, 0, [3.5, 2.5, 1.5, None], ("3.500", "1.500")),
        ({"steps": 4}, 0, [3.5, 2.5, 1.5], ("3.500", "-")),
        ({"steps": 4}, 1, [2.5, 1.5, 1.25], ("-", "1.250")),
        ({"steps": 0, "forwards": 4}, 0, [3.5, 2.5, 1.5, 1.25], ("3.500", "1.250")),
        ({"steps": 0, "forwards": 9}, 0, [3.5, 2.5, 1.5, 1.25], ("3.500", "-")),
        ({"steps": 0, "forwards": 4}, 2, [3.5, 2.5, 1.5, 1.25], ("3.500", "1.250")),
    ],
)
def test_a_loss_is_the_first_or_the_last_only_if_it_is(
    counts: dict[str, int], first: int, losses: list[float | None], shown: tuple[str, str]
) -> None:
    """Of a model without an optimizer only recorded steps tell the loss; its forwards without gradients count, too."""
    lines = text(end([ran(**counts)]), {}, 160, losses=[*[None] * first, *losses]).splitlines()
    row = next(line for line in lines if line.startswith("Net ")).split()
    found = tuple(figure for figure in row if figure in ("3.500", "2.500", "1.500", "1.250"))
    assert found == tuple(figure for figure in shown if figure != "-")
    said = [line for line in lines if "the last known loss" in line]
    assert said == ["Net: the last known loss is that of step 2, of 4 steps"] * (losses[-1] is None)
