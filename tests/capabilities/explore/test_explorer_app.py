"""`hookcli explore` as a person uses it: with keys, on a small screen. Textual's pilot presses them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import HEADER, activation, end, recorded_step, save
from support import swept

from hookcli.capabilities.blame.lines import Blame
from hookcli.capabilities.explore.app import Explorer, ReadsOn
from hookcli.capabilities.explore.command import of_record, of_reports
from hookcli.capabilities.explore.places import Subject, finding_text
from hookcli.capabilities.rules.lines import RuleFired
from hookcli.commands.show import remarks
from hookcli.record.file.reading import read_record
from hookcli.table import STATS_COLUMNS, Report, TensorStats, columns_named

COLUMNS = (*columns_named("fqn", "type", "shape"), *STATS_COLUMNS)
FINE, BAD = TensorStats(64, 0.5, 1.0, -2.0, 3.0, 9.0), TensorStats(64, 0.5, 1.0, -2.0, 3.0, 9.0, nan=7)


def report(layers: int = 3, model: str = "net", bad: str = "layers.1.fc") -> Report:
    names = [f"layers.{n}{part}" for n in range(layers) for part in (".fc", ".act", "")]
    kinds = {"c": "Linear", "t": "ReLU"}
    rows = [activation(name, kinds.get(name[-1:], "Block"), BAD if name == bad else FINE) for name in (*names, "")]
    return Report("activations", model, COLUMNS, rows)


def used(
    subjects: Sequence[Subject], keys: Sequence[str], look: Callable[[Explorer], Any], size: tuple[int, int] = (80, 24)
) -> list[Any]:
    """What a look at the screen shows first, and after each key, or after the window is so "wide"."""

    async def use() -> list[Any]:
        app = Explorer(subjects)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            while "/ Search" not in screen(app):  # the footer comes last
                await asyncio.sleep(0.02)
                await pilot.pause()
            seen = [look(app)]
            for key in keys:
                if key.startswith("wide "):
                    await pilot.resize_terminal(int(key.removeprefix("wide ")), size[1])
                else:
                    await pilot.press(key)
                await pilot.pause()
                while key == "wait" and app._history[0] != app._wanted:
                    await asyncio.sleep(0.02)
                await pilot.pause()
                seen.append(look(app))
        return seen

    with ThreadPoolExecutor(1) as thread:  # this one may have a loop, of a browser
        return thread.submit(asyncio.run, use()).result()


def screen(app: Explorer) -> str:
    """The text of the screen, a line for each of its lines."""
    return "\n".join("".join(part.text for part in strip).rstrip() for strip in app.screen._compositor.render_strips())


def shown(app: Explorer) -> list[str]:
    """The names in the tree that can be seen, and the one where the cursor is."""
    lines = [app._tree.get_node_at_line(line) for line in range(99)]
    names = [f"{'>' if node is app._tree.cursor_node else ''}{node.data}" for node in lines if node]
    return names[:1] and names


@pytest.mark.sweep
def test_a_tree_opens_and_closes_and_shows_the_figures_of_the_chosen_module() -> None:
    seen = used(of_reports([report()]), ["down", "space", "down"], lambda app: (shown(app), screen(app)))
    assert [names for names, _ in seen] == [
        [">", "layers.0", "layers.1", "layers.2"],
        ["", ">layers.0", "layers.1", "layers.2"],
        ["", ">layers.0", "layers.0.fc", "layers.0.act", "layers.1", "layers.2"],
        ["", "layers.0", ">layers.0.fc", "layers.0.act", "layers.1", "layers.2"],
    ]
    lines = seen[-1][1].splitlines()
    assert len(lines) == 24 and "1 fault in 10 modules; HK003 error layers.1.fc: 7 NaN" in lines[0]
    assert any("layers.0.fc Linear" in line for line in lines) and "layers.1 Block ▲" in seen[0][1]
    assert "/ Search" in lines[-1] and "q Quit" in lines[-1] and "Step" not in lines[-1] and "model" not in lines[-1]


@pytest.mark.sweep
def test_a_search_shows_what_it_finds_and_escape_all() -> None:
    keys = ["slash", *"relu", "enter", "escape"]
    *_, typed, entered, ended = used(of_reports([report(2)]), keys, lambda app: (shown(app), screen(app)))
    assert typed[0] == entered[0] == ["", "layers.0", ">layers.0.act", "layers.1", "layers.1.act"]
    assert "net (2 of 7 found)" in typed[1]
    assert ended[0] == ["", "layers.0", "layers.0.fc", ">layers.0.act", "layers.1"]


def test_findings_are_a_key_away_and_end_a_search() -> None:
    subjects = of_reports([report(bad="layers.2.act")])
    (*_, found, help_) = used(
        subjects, ["slash", "f", "c", "escape", "n", "question_mark"], lambda app: (shown(app), screen(app))
    )
    assert ">layers.2.act" in found[0] and "7 NaN" in found[1]
    assert "searches words" in help_[1]
    (*_, chosen) = used(subjects, ["tab", "tab", "down", "enter"], lambda app: shown(app))
    assert ">layers.2.act" in chosen


def test_a_record_goes_from_step_to_step_with_the_figures_over_time(tmp_path: Path) -> None:
    lines = [HEADER, *(recorded_step(n, std=1.0 + n) for n in range(3)), recorded_step(9, phase="no_grad"), end()]
    subjects = of_record(read_record(save(tmp_path / "a.run.jsonl", lines)))
    keys = ["down", "left", "left", "left", "wait", "slash", "left", "escape", "m"]
    seen = used(subjects, keys, screen, (100, 40))
    steps = [text.partition("step ")[2][:6] for text in seen]
    assert steps == ["2 of 2", "2 of 2", "1 of 2", "0 of 2", "0 of 2", "0 of 2", "0 of 2", "0 of 2", "0 of 2", ""]
    assert "Std of the output" in seen[5] and "▁▅█ 1.500" in seen[5] and "← → Step" in seen[5]
    assert "Net · no grad" in seen[-1] and "← → Step" not in seen[-1]


@pytest.mark.sweep
def test_a_record_opens_at_the_step_of_the_first_line_of_show_and_n_goes_there(tmp_path: Path) -> None:
    blame = Blame("Net", 23, 754.0, 1.0, [9e9], rows=[5], size=32, share=1.0, fqn="head")
    rule = RuleFired("Net", 21, "spike", ["loss"], [3.0])
    steps = [*map(recorded_step, (20, 21, 22, 23, 1024)), recorded_step(23, phase="no_grad")]
    for lines, at in (([blame], [3]), ([blame, rule], [1, 3]), ([replace(rule, step=7)], [None]), ([], [])):
        record = read_record(save(tmp_path / "a.run.jsonl", [HEADER, *steps, *lines, end()]))
        subjects = of_record(record)
        assert [finding_text(one) for one in subjects[0].lines] == remarks(record)[: len(lines)]
        assert [*subjects[0].lines.values()] == at and not subjects[1].lines
    subjects = of_record(read_record(save(tmp_path / "b.run.jsonl", [HEADER, *steps, blame, end()])))
    opened, _, gone = used(subjects, ["right", "n"], lambda app: (screen(app), shown(app)), (200, 40))
    assert opened[0].splitlines()[0].strip() == finding_text(*subjects[0].lines) and "step 23 of 1,024" in opened[0]
    assert "step 23 of 1,024" in gone[0] and ">head" in gone[1] and "754" in gone[0].partition("head Linear")[2]


@pytest.mark.sweep
def test_hundreds_of_modules_are_made_only_when_they_are_seen() -> None:
    made = used(of_reports([report(200)]), ["end", "space"], lambda app: len(app._made))
    assert made == [201, 201, 203]


@pytest.mark.parametrize("size", [(40, 10), swept((80, 24)), swept((200, 60))])
def test_every_size_shows_the_keys_and_the_tree(size: tuple[int, int]) -> None:
    (text,) = used(of_reports([report()]), [], screen, size)
    assert "layers.0" in text and "/ Search" in text and max(map(len, text.splitlines())) <= size[0]


@pytest.mark.sweep
def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    def filters(app: Explorer) -> set[str]:
        return {type(one).__name__ for one in app._filters}

    assert "NoColor" not in used(of_reports([report()]), [], filters)[0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "NoColor" in used(of_reports([report()]), [], filters)[0]


@pytest.mark.sweep
def test_the_sides_of_a_comparison_and_several_models_take_turns() -> None:
    sides = [replace(report(2), meta={"side": side}) for side in "ab"]
    subjects = of_reports([*sides, report(3, "other")])
    assert [one.title for one in subjects] == ["net · a", "net · b", "other"]
    seen = used(subjects, ["m", "m", "m"], lambda app: (screen(app).splitlines()[1].split()[1:4], len(shown(app))))
    assert seen[2] == (["other", "│", "(model)"], 4) and seen[0] == seen[3] == (["net", "·", "a"], 3)


def test_hostile_names_reach_no_terminal_and_are_no_markup() -> None:
    control = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\u202e"
    rows = [activation(f"[red]{control}[/x].{n}", f"{control}[/]", BAD) for n in range(2)]
    subjects = of_reports([Report("activations", f"{control}[bold]", COLUMNS, rows)])
    text = "".join(used(subjects, ["n", "slash", "[", "slash"], screen, (200, 60)))
    assert all(letter.isprintable() or letter == "\n" for letter in text) and "[red]\\x1b]52" in text


def test_figures_are_laid_out_again_when_the_window_is_enlarged() -> None:
    tensors = [report(), replace(report(), probe="inputs"), replace(report(), probe="time")]
    heads = ("act", "in", "time")
    narrow, wide, back = used(of_reports(tensors), ["wide 160", "wide 60"], lambda app: screen(app), (60, 40))

    def side_by_side(text: str) -> int:
        return max(sum(f" {head} " in f"{line} " for head in heads) for line in text.splitlines())

    assert side_by_side(wide) == 3 > side_by_side(narrow) == side_by_side(back)


def test_bytes_that_are_not_utf_8_do_not_end_the_input() -> None:
    class Bytes:
        """Reads on where it was, as a terminal does."""

        left = (b"\xff", b"\xc3(", b"q")
        read = ""

        def run_input_thread(self) -> None:
            while self.left:
                first, *self.left = self.left
                self.read += first.decode()

    driver = type("Driver", (ReadsOn, Bytes), {})()
    driver.run_input_thread()
    assert driver.read == "q" and not driver.left
    assert issubclass(Explorer(of_reports([report()])).driver_class, ReadsOn)
