"""What `communicate` reports, beside the same gradients by plain PyTorch in float64, and DDP's own log."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import comm_jobs
import pytest
import torch
from ranks import Raised, RanksError, run_ranks, stop_ranks
from support import assert_stats, float64_stats
from torch import Tensor

from hookcli.report import STATS_KEYS, Report, Row, TensorStats
from hookcli.report.buckets import merge_ranks

QUANTIZED = ("quantize-per-tensor", "quantize-per-channel")
HOOKS = ["allreduce", "fp16", "bf16", "powersgd", *QUANTIZED, "noop", "fp16+powersgd"]
ELEMENTS = sum(p.numel() for p in comm_jobs.model().parameters())


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    yield
    for size in (2, 4):
        stop_ranks(size)


@cache
def ran(*hooks: str, size: int = 2, **plan: Any) -> tuple[list[Report], list[dict[str, Tensor]]]:
    """The report and the local gradients of each rank."""
    found = run_ranks(size, comm_jobs.run_and_gradients, list(hooks), **plan)
    reports, gradients = zip(*found, strict=True)
    return list(reports), list(gradients)


def flat(gradients: dict[str, Tensor], row: Row) -> Tensor:
    return torch.cat([gradients[fqn].flatten() for fqn in row["fqns"]])


def last(report: Report, hook: str) -> list[Row]:
    rows = [row for row in report.rows if row["hook"] == hook]
    return [row for row in rows if row["step"] == rows[-1]["step"]]


def what_a_hook_makes(hook: str, local: list[Tensor]) -> list[Tensor]:
    """The result on each rank, from the ranks' gradients, written down anew."""
    if hook == "noop":
        return local
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(hook, torch.float32)
    parts = [grad.float().to(dtype).div(len(local)) for grad in local]
    return [sum(parts[1:], parts[0]).double()] * len(local)


@pytest.mark.parametrize("hook", ["allreduce", "fp16", "bf16", "noop"])
def test_errors_and_statistics_are_those_of_float64(hook: str) -> None:
    reports, gradients = ran(*HOOKS)
    for rank, report in enumerate(reports):
        for row in last(report, hook):
            local = [flat(own, row) for own in gradients]
            exact = torch.stack(local).mean(0)
            result = what_a_hook_makes(hook, local)[rank]
            difference = result - exact
            assert_stats(row.stats, float64_stats(result))
            assert_stats(TensorStats.of(row.values, "before_"), float64_stats(local[rank]))
            if hook == "allreduce":  # is what the others are measured by
                assert (row["relative_l2"], row["error_max"]) == (0, 0)
                continue
            assert row["relative_l2"] == pytest.approx((difference.norm() / exact.norm()).item(), rel=1e-3)
            assert row["error_max"] == pytest.approx(difference.abs().max().item(), rel=1e-3)
            assert row["exact_l2"] == pytest.approx(exact.norm().item(), rel=1e-5)
            cosine = torch.dot(result, exact) / result.norm() / exact.norm()
            assert row["cosine"] == pytest.approx(cosine.item(), abs=1e-6)


def test_merged_ranks_are_the_concatenation() -> None:
    reports, gradients = ran(*HOOKS)
    merged = merge_ranks(reports)
    for hook in ("fp16", "noop"):
        [row] = last(merged, hook)
        local = [flat(own, row) for own in gradients]
        exact = torch.stack(local).mean(0).repeat(2)
        made = what_a_hook_makes(hook, local)
        result = torch.cat(made)
        assert_stats(row.stats, float64_stats(result if hook == "noop" else made[0]))  # the same on both ranks
        assert row["relative_l2"] == pytest.approx(((result - exact).norm() / exact.norm()).item(), rel=1e-3)
        assert row["error_max"] == pytest.approx((result - exact).abs().max().item(), rel=1e-3)
        cosine = torch.dot(result, exact) / result.norm() / exact.norm()
        assert row["cosine"] == pytest.approx(cosine.item(), abs=1e-6)
        assert row["elements"] == ELEMENTS and row["before_numel"] == 2 * ELEMENTS
        assert row["exact_l2"] == pytest.approx(exact.norm().item() / math.sqrt(2), rel=1e-5)
        assert row["seconds"] == max(last(report, hook)[0]["seconds"] for report in reports)


def powersgd_elements(rank: int) -> int:
    """What PowerSGD hands over by its formula: P and Q of matrices that are worth it, the rest as it is."""
    total = 0
    for parameter in comm_jobs.model().parameters():
        n, m = parameter.shape[0], parameter.numel() // parameter.shape[0]
        r = min(n, m, rank)
        total += (n + m) * r if (n + m) * r * 2 < n * m else n * m
    return total


BYTES = {
    "allreduce": 4 * ELEMENTS,
    "fp16": 2 * ELEMENTS,
    "bf16": 2 * ELEMENTS,
    "powersgd": 4 * powersgd_elements(1),
    "fp16+powersgd": 2 * powersgd_elements(1),
    "quantize-per-tensor": ELEMENTS + 2 * 4,  # a scale and a zero point
    "quantize-per-channel": (ELEMENTS // 512 + 1) * (512 + 2 * 4),  # the same for each 512, the last of them padded
    "noop": 0,
}


@pytest.mark.parametrize("hook", HOOKS)
def test_payload_bytes(hook: str) -> None:
    for report in ran(*HOOKS)[0]:
        [row] = last(report, hook)
        assert (row["bytes_before"], row["bytes_after"]) == (4 * ELEMENTS, BYTES[hook])
        assert row["ratio"] == BYTES[hook] / (4 * ELEMENTS) == report.totals["hooks"][hook]["ratio"]


def test_several_hooks_have_the_same_gradients_in_every_step() -> None:
    for report in ran(*HOOKS)[0]:
        before = {tuple(row[f"before_{key}"] for key in STATS_KEYS) for row in report.rows if row["step"] == 2}
        assert len(before) == 1 and len(report.rows) == len(HOOKS) * 3


def test_a_hook_that_draws_random_numbers_does_not_change_the_next_step() -> None:
    """There is a dropout in the model: another random state would show."""
    report, _ = run_ranks(2, comm_jobs.run, ["comm_jobs:random_numbers", "noop"])
    assert [row["before_l2"] for row in report.rows] == pytest.approx([report.rows[0]["before_l2"]] * 6, rel=1e-6)


def test_powersgd_warms_up_as_told() -> None:
    for row in ran(*HOOKS)[0][0].rows:
        if row["hook"] == "powersgd":
            assert (row["relative_l2"] < 1e-6) == (row["step"] < 2) == (row["ratio"] == 1)


@pytest.mark.parametrize("size", [2, 4])
def test_buckets_are_those_of_ddps_log(size: int) -> None:
    """Sizes, order and the rebuilding; and the time is within what DDP measured."""
    reports, _ = ran("fp16", size=size, bucket_cap_mb=0.005)
    for report in reports:
        log = report.meta["ddp"]["fp16"]
        names = [fqn for fqn, _ in comm_jobs.model().named_parameters()]
        first, rebuilt = ([row for row in report.rows if row["step"] == step] for step in (0, 2))
        for rows, key in ((first, "bucket_sizes"), (rebuilt, "rebuilt_bucket_sizes")):
            assert [row["bytes_before"] for row in rows] == [int(text) for text in log[key].split(",")]
        order = [[names[int(i)] for i in part.split()] for part in log["rebuilt_per_bucket_param_indices"].split(",")]
        assert [row["fqns"] for row in rebuilt] == order and len(rebuilt) > 1
        assert [row["order"] for row in rebuilt] == [row["bucket"] for row in rebuilt] == list(range(len(rebuilt)))
        assert [row["params"] for row in rebuilt] == [len(part) for part in order]
        # DDP notes the times of a step when the next one begins: what it has is the last step's but one.
        assert max(row["seconds"] for row in report.rows if row["step"] == 1) < log["backward_comm_time"] / 1e9


def test_accumulation_without_sync() -> None:
    """Three passes of the same data: what is reduced is their sum, which dropout makes different parts."""
    reports, gradients = ran("allreduce", no_sync=2, steps=2)
    for rank, report in enumerate(reports):
        for row in report.rows:
            assert row["before_l2"] == pytest.approx(flat(gradients[rank], row).norm().item(), rel=1e-5)
        assert len({row["step"] for row in report.rows}) == 2


def test_half_precision_is_measured_by_a_mean_in_float32() -> None:
    """There the plain allreduce itself rounds, and that shows."""
    for report in run_ranks(2, comm_jobs.run_half):
        [row] = last(report, "allreduce")
        assert 1e-4 < row["relative_l2"] < 2e-2 and row["bytes_after"] == 2 * ELEMENTS


def test_bytes_of_collectives_of_every_sort() -> None:
    """An allgather in half precision, a functional collective of 5 floats, a broadcast of 3 that rank 0 alone sends."""
    reports = run_ranks(2, comm_jobs.run, ["comm_jobs:gathers"])
    assert [last(r, "comm_jobs:gathers")[0]["bytes_after"] for r in reports] == [2 * ELEMENTS + 32, 2 * ELEMENTS + 20]
    [row] = last(merge_ranks(reports), "comm_jobs:gathers")
    assert row["bytes_after"] == 2 * ELEMENTS + 32
    assert row["note"] == f"ranks hand over {2 * ELEMENTS + 20:,} to {2 * ELEMENTS + 32:,} bytes"


def test_bytes_that_can_not_be_told_are_none() -> None:
    for report in run_ranks(2, comm_jobs.run, ["comm_jobs:new_group"], steps=1):
        [row] = report.rows
        assert row["bytes_after"] is None and row["ratio"] is None and row["relative_l2"] == 0
        [skipped] = report.skipped
        assert skipped.reason.startswith("bytes that comm_jobs:new_group hands over: the hook made a process group")


FAILURES = {
    "raises": "comm_jobs:raises failed on bucket 0 (0.weight ... 4.bias): KeyError: 'lost'\n  at comm_jobs.py:",
    "raises_in_then": "comm_jobs:raises_in_then failed in a callback for bucket 0 (0.weight ... 4.bias): ",
    "returns_tensor": "comm_jobs:returns_tensor returned a tensor of shape (4627,) and dtype float32 for bucket 0 ",
    "returns_none": "comm_jobs:returns_none returned None for bucket 0 (0.weight ... 4.bias): a communication hook "
    "returns a torch.futures.Future",
    "resolves_to_list": "its Future resolves to a list: PyTorch takes one tensor, so end with .then(",
    "resolves_to_half_of_it": "resolves to a tensor of shape (2314,) and dtype float32: it must be a tensor of the "
    "bucket's shape, (4627,)",
    "resolves_to_bytes": "resolves to a tensor of shape (4627,) and dtype uint8, which PyTorch would use as gradients",
    "resolves_to_text": "resolves to a str: it must be a tensor of the bucket's shape, (4627,)",
}


def test_what_goes_wrong_in_a_hook_names_the_hook_and_the_bucket() -> None:
    said = run_ranks(2, comm_jobs.run_functions, list(FAILURES), steps=1)
    for own in said:
        for text, expected in zip(own, FAILURES.values(), strict=True):
            assert text.startswith("CommHookError: ") and expected in text, text
        assert "nothing to divide by" in own[1]


def test_instances_and_partials_are_taken_with_a_remark() -> None:
    for own in run_ranks(2, comm_jobs.run_functions, ["instance", "partly", "own_allreduce"], steps=1):
        assert [report.rows[0]["relative_l2"] for report in own] == [0, 0, 0]
        said = [report.meta["said"] for report in own]
        assert "comm_jobs:instance is a Instance: register_comm_hook takes functions only" in said[0][0]
        assert "comm_jobs:partly is a partial" in said[1][0] and not said[2]


def test_a_parameter_without_a_gradient_is_named() -> None:
    for raised in run_ranks(2, comm_jobs.run_unused):
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
        assert last(report, "bf16")[0]["bytes_after"] == 2 * ELEMENTS


def test_gradients_that_overflow_half_precision_show() -> None:
    reports = run_ranks(2, comm_jobs.run_huge)
    [row] = last(reports[0], "fp16")
    assert row.stats and row.stats.inf > 0 and row["error_max"] == math.inf and math.isnan(row["cosine"])


# What is said of PyTorch, as long as it is true.


def test_batched_powersgd_is_refused_because_it_is_broken_upstream() -> None:
    assert run_ranks(2, comm_jobs.upstream_batched) == ["AssertionError"] * 2
    for raised in run_ranks(2, comm_jobs.run, ["batched-powersgd"]):
        assert f"--hook batched-powersgd: broken in torch {torch.__version__}" in raised.message


def test_hooks_that_wait_in_callbacks_get_one_bucket_because_more_hang_upstream() -> None:
    report = ran("powersgd", "fp16", bucket_cap_mb=0.005)[0][0]
    assert report.meta["said"] == [
        "powersgd: would hang on gloo with more than one bucket (it waits within callbacks); one bucket is used"
    ]
    assert {row["bucket"] for row in report.rows} == {0}
    try:  # last, because it ends the processes
        found = run_ranks(2, comm_jobs.upstream_two_buckets, "powersgd", timeout=6)
    except RanksError:  # it hangs
        return
    assert all(isinstance(answer, Raised) for answer in found)  # or gloo gave up
