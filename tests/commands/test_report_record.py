"""`hookcli report RECORD` writes the page of a record; whatever it lacks, the page opens and says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import forks
import paged
import pytest
from conftest import Ran
from records import HEADER, RUN, end, recorded_step, save, text

from hookcli.record.file.record_lines import Header
from hookcli.record.file.writer import RecordWriter

pytestmark = pytest.mark.usefixtures("in_tmp_path")


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_of_a_record_is_named_after_it(cli, tmp_path: Path) -> None:
    save(Path("train.run.jsonl"), RUN)
    ran: Ran = cli("report", "train.run.jsonl")
    assert (ran.code, ran.out) == (0, "") and "wrote train.html: 4 recorded steps" in ran.err
    found = paged.payload(Path("train.html").read_text())
    facts = dict(found["steps"]["facts"])
    assert (found["kind"], found["title"], found["live"]) == ("record", "train.py", None)
    assert (facts["Command"], facts["Ended"]) == ("train.py --epochs 3", "exit code 0")
    assert facts["Took"].startswith("41.2 s")
    assert "connect-src" not in Path("train.html").read_text()
    ran = cli("report", "train.run.jsonl", "-f", "json")
    assert json.loads(ran.out)["reports"] == found["reports"]


def test_a_folder_of_ranks_stands_for_the_file_that_was_named(cli, tmp_path: Path) -> None:
    """`hookcli run -o ranks.run torchrun ...` writes ranks.run.parts."""
    Path("ranks.run.parts").mkdir()
    save(Path("ranks.run.parts/rank0.jsonl"), RUN)
    ran: Ran = cli("report", "ranks.run", "-o", "page.html")
    assert ran.code == 0 and "wrote page.html: 4 recorded steps" in ran.err, ran.err
    assert cli("show", "ranks.run").code == cli("diff", "ranks.run", "ranks.run.parts").code == 0


@pytest.mark.sweep
def test_a_record_in_a_pipe(cli) -> None:
    save(Path("a.run.jsonl"), RUN)
    command = f"cat a.run.jsonl | {sys.executable} -m hookcli report /dev/stdin -o piped.html"
    ran = forks.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    cli("report", "a.run.jsonl", "-o", "a.html")
    piped, plain = (paged.payload(Path(name).read_text())["steps"]["tracks"] for name in ("piped.html", "a.html"))
    assert piped == plain


def test_what_a_record_lacks_is_on_its_page(cli) -> None:
    def notes(content: str) -> list[str]:
        Path("b.run.jsonl").write_text(content)
        assert cli("report", "b.run.jsonl").code == 0
        found: list[str] = paged.payload(Path("b.html").read_text())["steps"]["notes"]
        return found

    whole = text([HEADER, recorded_step(0), recorded_step(100)])
    (killed,) = notes(whole)
    assert killed.startswith("no end is recorded: the script was killed, or still ran; the last line came ")
    cut = notes(whole[:-200])
    assert "the last line is cut (killed, disk full, or still being written): step 100 is incomplete" in cut
    damaged = notes(text([HEADER, recorded_step(0)]) + "{}\n" + text([end()]))
    assert damaged == ["1 of 4 lines is damaged and left out: 3"]
    assert "no step was recorded" in notes(text([HEADER, end([])]))
    assert "the record has no header, so the script and its settings are unknown" in notes(
        text([recorded_step(), end()])
    )
    last = [recorded_step(0), recorded_step(1, complete=False)]
    assert "1 step left out, not finished (hookcli show --step N shows one)" in notes(text([HEADER, *last, end()]))


def test_ranks_are_beside_each_other_and_missing_ones_are_named(cli) -> None:
    Path("a.run").mkdir()
    for rank in (0, 2):
        header = Header("a.py", ["a.py"], "2026-11-21T20:00:00+00:00", 1, {}, rank=rank, ranks=3)
        writer = RecordWriter(f"a.run/rank{rank}.jsonl").begun(header)
        for step in range(2):
            writer.write(recorded_step(step, losses=[rank + 1.0 + step]))
        writer.write(end())
        writer.close()
    assert cli("report", "a.run").code == 0
    steps = paged.payload(Path("a.html").read_text())["steps"]
    ranks = steps["ranks"]
    assert ["Ranks", "3"] in steps["facts"] and ranks["missing"] == [1]
    losses = {one["rank"]: next(f["values"] for f in one["figures"] if f["name"] == "loss") for one in ranks["tracks"]}
    assert losses == {0: [1.0, 2.0], 2: [3.0, 4.0]}
    merged = next(figure["values"] for figure in steps["tracks"][0]["figures"] if figure["name"] == "loss")
    assert merged == [2.0, 3.0]
    assert [row["rank"] for row in ranks["table"][0]["rows"]] == [0, 2]
    assert any("no part of rank 1 of 3 is here" in line for line in steps["notes"])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["gone.run.jsonl"], "gone.run.jsonl: no such file"),
        (["empty.run.jsonl"], "is empty: nothing has been recorded"),
        (["a.run.jsonl", "--port", "99"], "--port: is for --serve"),
        (["a.run.jsonl", "a.run.jsonl", "--port", "99"], "--port: is for --serve"),
        (["a.run.jsonl", "--serve", "--port", "0"], "--port '0': give a number from 1"),
        (["a.run.jsonl", "--serve", "-o", "x.html"], "--serve: writes no file"),
        (["resnet18", "--serve"], "--serve resnet18: is not a record of hookcli run"),
        (["a.run.jsonl", "-o", "no/such/folder.html"], "can't write to no/such/"),
    ],
)
def test_mistakes(cli, argv: list[str], said: str) -> None:
    save(Path("a.run.jsonl"), RUN)
    Path("empty.run.jsonl").touch()
    ran = cli("report", *argv)
    assert (ran.code, ran.out) == (2, "") and said in ran.err and len(ran.err.splitlines()) <= 2
    assert not list(Path().glob("*.html"))
