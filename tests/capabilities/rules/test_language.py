"""The language of rules: what holds, what is refused, and in which words."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import pytest

from hookcli.capabilities.rules.language import Rule, parse_rules
from hookcli.errors import UsageError
from hookcli.record.observe.recording_plan import RecordingPlan


def rule(text: str) -> Rule:
    (one,) = parse_rules([text])
    return one


def holds(text: str, figures: Mapping[str, float | None], before: Mapping[str, list[float]] | None = None) -> bool:
    """Whether a rule holds for figures, by their labels, with the steps before by the figure of a window."""
    one, past = rule(text), before or {}
    values = {
        term: term.over(past[term.figure.name]) if term.window else figures.get(term.label)
        for term in one.nodes.values()
    }
    return one.holds(values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss > 2", True),
        ("loss >= 3 and lr < 1", True),
        ("loss > 3 or lr == 0.5", True),
        ("2 < loss < 3", False),
        ("2 < loss <= 3", True),
        ("loss > lr * 6", False),
        ("-loss + 1 < -1.5", True),
        ("loss / 2 - 1 == 0.5", True),
        ("(loss + lr) * 2 > 6.9", True),
        ("loss / 0 > 0 or loss / 0 <= 0", False),
        ("loss > 1" + "0" * 150, False),
        ("not finite(loss)", False),
        ("max_abs(layers.3.mlp) > 1e4", True),
        ("std('a b') < 1", True),
        ("std(0) < 1", True),
        ("ratio > 0 or ratio <= 0", False),  # it is not known
        ("not finite(ratio)", False),
        ("-" * 180 + "loss > 1", True),
    ],
)
def test_conditions(text: str, expected: bool) -> None:
    figures = {"loss": 3.0, "lr": 0.5, "max_abs(layers.3.mlp)": 2e4, "std(a b)": 0.5, "std(0)": 0.5}
    assert holds(text, figures) is expected
    assert holds(f"or else: {text}", figures) is expected and rule(f"or else: {text}").name == "or else"
    assert rule(text).name == text


@pytest.mark.parametrize(("window", "value"), [("median", 4.0), ("mean", 5.0), ("max", 9.0), ("min", 2.0)])
def test_windows_are_over_the_last_steps_and_need_as_many(window: str, value: float) -> None:
    past = {"loss": [100.0, 9.0, 2.0, 4.0]}
    for text in (f"loss > {window}(3)", f"loss > {window}(loss, 3)"):
        assert holds(text, {"loss": value + 0.01}, past) and not holds(text, {"loss": value}, past)
        assert not holds(text, {"loss": 1e9}, {"loss": past["loss"][:2]})
    assert holds(f"lr > {window}(loss, 3)", {"lr": 9.5}, past)
    assert holds(f"loss > {window}(std(layers.1), 3)", {"loss": 9.5}, {"std": past["loss"]})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_of_values_that_are_not_finite_nan_fires_no_comparison(value: float) -> None:
    assert holds("not finite(loss)", {"loss": value})
    assert holds("loss > 5", {"loss": value}) is (value == math.inf)
    compares = [f"loss {sign} 5" for sign in ("<", "<=", ">", ">=", "==")]
    assert any(holds(text, {"loss": value}) for text in compares) is not math.isnan(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("los > 3", "unknown figure 'los'; did you mean loss?"),
        ("accuracy > 3", "unknown figure 'accuracy'; figures: step, loss, grad_norm, lr, seconds, "),
        ("stdd(layers.3) > 3", "unknown figure of a module 'stdd'; did you mean std?"),
        ("loss", "a rule compares figures, such as grad_norm > 5 * median(50), joined by and, or; or is: not fin"),
        ("not loss > 5", "joined by and, or"),
        ("loss is not finite", "or is: not finite(loss)"),
        ("finite(loss)", "or is: not finite(loss)"),
        ("loss != 3", "a rule compares figures"),
        ("loss > 5 * median(50", "'(' was never closed; a rule compares figures, such as"),
        ("loss > 5 * median(loss)", "median(loss): over how many steps? Write median(loss, 50)"),
        ("loss > lr * median(9)", "median(9): of which figure? Write median(loss, 9)"),
        ("median(5) > median(9)", "median(5): of which figure? Write median(loss, 5)"),
        ("loss > median(0)", "median(0): give a number of steps from 1 to 10,000"),
        ("loss > median(99999)", "from 1 to 10,000"),
        ("1 > 0", "a rule compares figures, such as"),
        ("loss > median(-5)", "median(-5): over how many steps? Write median(loss, 50)"),
        ("not finite(median(loss, 5))", "'median(loss, 5)' is not a figure of a step"),
        ("loss > True", "'True' is not a figure of a step"),
        ("loss ** 2 > 1", "'loss ** 2' is not a figure of a step"),
        ("__import__('os').system('true') > 1", "is not a figure of a step"),
        ("().__class__ > 1", "is not a figure of a step"),
        ("[x for x in loss] > 1", "is not a figure"),
        ("(lambda: loss)() > 1", "a rule compares"),
        ("open(secret) > 1", "unknown figure of a module 'open'"),
        ("", "invalid syntax"),
        ("loss > 1\0", "a rule compares figures"),
        ("(" * 99 + "loss" + ")" * 90 + " > 1", "a rule compares figures"),
        ("-" * 300 + "loss > 1", "at most 200 characters"),
    ],
)
def test_anything_else_is_refused_with_what_would_be_right(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_rules([f"x: {text}"])
    message = str(refused.value)
    assert message.startswith("--rule ") and said in message and "\n" not in message


@pytest.mark.parametrize("text", ["1or loss", "loss > 5or lr > 1", "0x1for loss > 1", "std('\\d') > 1", "loss > 1e5if"])
def test_python_warns_of_no_rule(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UsageError, match=r"--rule .*(put a space between a number and a word|backslashes)"):
            parse_rules([text])
        assert parse_rules(["loss > 1e-3 and lr < .5 or std(0.weight) > 1_000", "max_abs(layers.3e) > 2.5E+3"])


def test_the_plan_refuses_what_can_not_be_done() -> None:
    with pytest.raises(UsageError, match="two rules have one name"):
        RecordingPlan(of_parts={"rules": ["a: loss > 1", "a: loss > 2"]})
    with pytest.raises(UsageError, match="unknown --then 'dmp'; did you mean dump"):
        RecordingPlan(of_parts={"rules": ["loss > 1"], "then": "dmp"})
    with pytest.raises(UsageError, match="--then: is for rules; add one"):
        RecordingPlan(of_parts={"then": "stop"})
    with pytest.raises(UsageError, match="give a command, with its quotes closed"):
        RecordingPlan(of_parts={"rules": ["loss > 1"], "then": "stop,exec:echo 'x"})
