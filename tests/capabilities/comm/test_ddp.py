"""What `communicate` reports, beside the same gradients by plain PyTorch in float64, and DDP's own log."""

from __future__ import annotations

import math

import pytest
import torch
from capabilities.comm import comm_jobs
from capabilities.comm.ddp_runs import COUNTS_BYTES, ELEMENTS, last, ran
from ranks import run_ranks
from support import assert_stats, float64_stats, swept
from torch import Tensor

from hookcli.capabilities.comm.buckets import merge_ranks
from hookcli.table import STATS_KEYS, Row, TensorStats

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.usefixtures("rank_pools")]  # one pool of ranks

needs_bytes = pytest.mark.skipif(not COUNTS_BYTES, reason="PyTorch has this hook since 2.14")

QUANTIZED = ("quantize-per-tensor", "quantize-per-channel")
HOOKS = ["allreduce", "fp16", "bf16", "powersgd", "noop", "fp16+powersgd"]


def flat(gradients: dict[str, Tensor], row: Row) -> Tensor:
    return torch.cat([gradients[fqn].flatten() for fqn in row["fqns"]])


def what_a_hook_makes(hook: str, local: list[Tensor]) -> list[Tensor]:
    """The result on each rank, from the ranks' gradients, written down anew."""
    if hook == "noop":
        return local
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(hook, torch.float32)
    parts = [grad.float().to(dtype).div(len(local)) for grad in local]
    return [sum(parts[1:], parts[0]).double()] * len(local)


@pytest.mark.parametrize("hook", [swept("allreduce"), "fp16", "bf16", "noop"])
def test_errors_and_statistics_are_those_of_float64(hook: str) -> None:
    reports, gradients = ran(*HOOKS)
    for rank, report in enumerate(reports):
        assert last(report, hook)
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


@needs_bytes
@pytest.mark.parametrize("hook", [*HOOKS, *QUANTIZED])
def test_payload_bytes(hook: str) -> None:
    if hook in QUANTIZED and not run_ranks(2, comm_jobs.works, hook)[0]:
        pytest.skip("PyTorch's own quantizing hooks fail before torch 2.15")
    for report in ran(*(QUANTIZED if hook in QUANTIZED else HOOKS))[0]:
        [row] = last(report, hook)
        assert (row["bytes_before"], row["bytes_after"]) == (4 * ELEMENTS, BYTES[hook])
        assert row["ratio"] == BYTES[hook] / (4 * ELEMENTS) == report.totals["hooks"][hook]["ratio"]


def test_several_hooks_have_the_same_gradients_in_every_step() -> None:
    for report in ran(*HOOKS)[0]:
        before = {tuple(row[f"before_{key}"] for key in STATS_KEYS) for row in report.rows if row["step"] == 2}
        assert len(before) == 1 and len(report.rows) == len(HOOKS) * 3


def test_a_hook_that_draws_random_numbers_does_not_change_the_next_step() -> None:
    """There is a dropout in the model: another random state would show."""
    report, _ = run_ranks(2, comm_jobs.run, ["own_hooks:random_numbers", "noop"])
    assert [row["before_l2"] for row in report.rows] == pytest.approx([report.rows[0]["before_l2"]] * 6, rel=1e-6)


def test_powersgd_warms_up_as_told() -> None:
    rows = [row for row in ran(*HOOKS)[0][0].rows if row["hook"] == "powersgd"]
    assert [row["step"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert (row["relative_l2"] < 1e-6) == (row["step"] < 2)
        assert not COUNTS_BYTES or (row["ratio"] == 1) == (row["step"] < 2)


@pytest.mark.parametrize("size", [2, swept(4)])
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
        assert 1e-4 < row["relative_l2"] < 2e-2
        assert row["bytes_after"] == (2 * ELEMENTS if COUNTS_BYTES else None)


@needs_bytes
def test_bytes_of_collectives_of_every_sort() -> None:
    """An allgather in half precision, a functional collective of 5 floats, a broadcast of 3 that rank 0 alone sends."""
    reports = run_ranks(2, comm_jobs.run, ["own_hooks:gathers"])
    assert [last(r, "own_hooks:gathers")[0]["bytes_after"] for r in reports] == [2 * ELEMENTS + 32, 2 * ELEMENTS + 20]
    [row] = last(merge_ranks(reports), "own_hooks:gathers")
    assert row["bytes_after"] == 2 * ELEMENTS + 32
    assert row["note"] == f"ranks hand over {2 * ELEMENTS + 20:,} to {2 * ELEMENTS + 32:,} bytes"


def test_bytes_that_can_not_be_told_are_none() -> None:
    for report in run_ranks(2, comm_jobs.run, ["own_hooks:new_group"], steps=1):
        [row] = report.rows
        assert row["bytes_after"] is None and row["ratio"] is None and row["relative_l2"] == 0
        [skipped] = report.skipped
        assert skipped.reason.startswith("bytes that own_hooks:new_group hands over: the hook made a process group")


def test_a_step_with_other_gradients_than_those_of_the_exact_mean_is_named() -> None:
    for report in run_ranks(2, comm_jobs.run_drifting):
        reason = "step 1 under fp16: gradients differ from the first step's, which gave the exact mean"
        [said] = [skipped for skipped in report.skipped if not skipped.reason.startswith("bytes ")]  # which 2.11 adds
        assert said.reason == reason
        assert [row["relative_l2"] < 0.01 for row in report.rows] == [True, False]
