"""Why is my loss NaN? Scripts that diverge at a known step, each for another reason."""

from __future__ import annotations

import re

import pytest
from questions.asking import Asker


def found(ask: Asker, script: str, *, code: int = 1) -> str:
    """The line on the first bad value, which is said as soon as it is found, and nothing else at the end."""
    answer = ask(f"hookcli run --first-bad stop {script}", code=code)
    lines = [line for line in answer.err.splitlines() if "first non-finite value: " in line]
    said = lines[0].removeprefix("hookcli: ")
    assert lines[0] == answer.err.splitlines()[1] and {*lines[1:]} <= {said}
    return said


@pytest.mark.sweep
def test_a_learning_rate_that_is_too_high(ask: Asker) -> None:
    """A plain run names the cause, and a search the first value that is not finite."""
    plain = ask("hookcli run train_lr.py")
    assert "step 19: loss nan" in plain.out
    assert re.search(r"the update at step 0 was \S+ times the weights, by a learning rate of 50\n", plain.err)
    assert plain.err.splitlines()[-1] == "Next: hookcli report train_lr.run.jsonl"
    said = found(ask, "train_lr.py")
    assert re.fullmatch(
        r"first non-finite value: 1 Inf in the loss \(Sequential, step 2\); the update at step 1 was \S+ times the "
        r"weights; learning rate 50; the model's output was finite, up to \S+: it begins in the loss function",
        said,
    )


@pytest.mark.sweep
def test_a_log_of_zero_between_modules(ask: Asker) -> None:
    assert found(ask, "train_log.py") == (
        "first non-finite value: 1 Inf in the input of encoder (Density, step 7); "
        "computed between modules, in Density.forward; only in row 3 of 16 (first dimension, counted from 0)"
    )


@pytest.mark.sweep
def test_a_log_of_zero_in_the_loss(ask: Asker) -> None:
    """The logits of step 9 are so large that a softmax is 0, and 0 times its logarithm NaN."""
    said = found(ask, "train_loss.py")
    assert said.startswith("first non-finite value: 1 NaN in the loss (Classifier, step 9); the model's output was ")
    assert said.endswith(": it begins in the loss function")


def test_an_overflow_of_float16(ask: Asker) -> None:
    said = found(ask, "train_fp16.py")
    assert re.search(r"\d+ Inf in the output of (scale|head) \(Net, step \d+\); float16 ends at 65,504", said)
