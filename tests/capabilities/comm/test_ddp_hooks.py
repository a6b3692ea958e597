"""Hooks that go wrong, and what is left of one."""

from __future__ import annotations

import math

import pytest
import torch
from capabilities.comm import comm_jobs
from capabilities.comm.ddp_runs import COUNTS_BYTES, ELEMENTS, last, ran
from ranks import Raised, RanksError, run_ranks, stop_ranks

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.usefixtures("rank_pools")]  # one pool of ranks


FAILURES = {
    "raises": "own_hooks:raises failed on bucket 0 (0.weight ... 4.bias): KeyError: 'lost'\n  at own_hooks.py:",
    "raises_in_then": "own_hooks:raises_in_then failed in a callback for bucket 0 (0.weight ... 4.bias): ",
    "returns_tensor": "own_hooks:returns_tensor returned a tensor of shape (4627,) and dtype float32 for bucket 0 ",
    "returns_none": "own_hooks:returns_none returned None for bucket 0 (0.weight ... 4.bias): a communication hook "
    "returns a torch.futures.Future",
    "resolves_to_list": "its Future resolves to a list: PyTorch takes one tensor, so end with .then(",
    "resolves_to_half_of_it": "resolves to a tensor of shape (2314,) and dtype float32: it must be a tensor of the "
    "bucket's shape, (4627,)",
    "resolves_to_bytes": "resolves to a tensor of shape (4627,) and dtype uint8, which PyTorch would use as gradients",
    "resolves_to_text": "resolves to a str: it must be a tensor of the bucket's shape, (4627,)",
}


@pytest.mark.sweep
def test_what_goes_wrong_in_a_hook_names_the_hook_and_the_bucket() -> None:
    said = run_ranks(2, comm_jobs.run_functions, list(FAILURES), steps=1)
    for own in said:
        for text, expected in zip(own, FAILURES.values(), strict=True):
            assert text.startswith("CommHookError: ") and expected in text, text
        assert "nothing to divide by" in own[1]


@pytest.mark.sweep
def test_instances_and_partials_are_taken_with_a_remark() -> None:
    for own in run_ranks(2, comm_jobs.run_functions, ["instance", "partly", "own_allreduce"], steps=1):
        assert [report.rows[0]["relative_l2"] for report in own] == [0, 0, 0]
        said = [report.meta["said"] for report in own]
        assert "own_hooks:instance is a Instance: register_comm_hook takes functions only" in said[0][0]
        assert "own_hooks:partly is a partial" in said[1][0] and not said[2]


def test_a_parameter_without_a_gradient_is_named() -> None:
    for raised in run_ranks(2, comm_jobs.run_unused, may_raise=True):
        assert isinstance(raised, Raised) and raised.kind == "UsageError"
        assert raised.message == (
            "no gradient reached aux.weight, aux.bias, but DDP waits for every parameter's: use the output in the "
            "loss, freeze them (requires_grad=False), or in training pass find_unused_parameters=True"
        )


def test_nothing_is_left_behind() -> None:
    for gone, calls, found, expected in run_ranks(2, comm_jobs.left_behind):
        assert gone and calls == 0
        assert torch.equal(found, expected)


def test_bf16_runs_where_pytorch_was_built_without_cuda() -> None:
    """PyTorch refuses it there by the function's name."""
    for said, report in run_ranks(2, comm_jobs.bf16_without_cuda):
        assert "BF16 all reduce communication hook required CUDA" in said
        assert last(report, "bf16")[0]["bytes_after"] == (2 * ELEMENTS if COUNTS_BYTES else None)


def test_gradients_that_overflow_half_precision_show() -> None:
    reports = run_ranks(2, comm_jobs.run_huge)
    [row] = last(reports[0], "fp16")
    assert row.stats and row.stats.inf > 0 and row["error_max"] == math.inf and math.isnan(row["cosine"])


# What is said of PyTorch, as long as it is true.


@pytest.mark.sweep
def test_batched_powersgd_is_refused_because_it_is_broken_upstream() -> None:
    assert run_ranks(2, comm_jobs.upstream_batched) == ["AssertionError"] * 2
    stop_ranks(2)  # whose backward passes were broken off
    for raised in run_ranks(2, comm_jobs.run, ["batched-powersgd"], may_raise=True):
        assert f"--hook batched-powersgd: broken in torch {torch.__version__}" in raised.message


@pytest.mark.parametrize("hook", ["quantize-per-tensor", "fp16+quantize-per-channel"])
def test_a_quantizing_hook_works_or_is_refused(hook: str) -> None:
    """PyTorch's fail in a callback before torch 2.15."""
    for found in run_ranks(2, comm_jobs.run, [hook], may_raise=True):
        if isinstance(found, Raised):
            assert found.message.startswith(f"--hook {hook}: broken in torch {torch.__version__}, whose quantization_")
            assert found.message.endswith("(IndexError); it works since torch 2.15")
        else:
            assert [row["step"] for row in found.rows] == [0, 1, 2] and all(
                row["relative_l2"] < 0.1 for row in found.rows
            )


@pytest.mark.sweep
def test_hooks_that_wait_in_callbacks_get_one_bucket_because_more_hang_upstream() -> None:
    report = ran("powersgd", "fp16", bucket_cap_mb=0.005)[0][0]
    assert report.meta["said"] == [
        "powersgd: would hang on gloo with more than one bucket (it waits within callbacks); one bucket is used"
    ]
    assert {row["bucket"] for row in report.rows} == {0}
    try:  # last, because it ends the processes
        found = run_ranks(2, comm_jobs.upstream_two_buckets, "powersgd", timeout=2, may_raise=True)
    except RanksError:  # it hangs
        return
    assert all(isinstance(answer, Raised) for answer in found)  # or gloo gave up
