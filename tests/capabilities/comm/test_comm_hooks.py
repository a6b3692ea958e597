"""Communication hooks by name, and what PyTorch asks of a function before it takes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from capabilities.comm import comm_jobs
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from hookcli.errors import UsageError
from hookcli.hooks.communication.comm_hooks import find_hook
from hookcli.hooks.option_values import COMM_HOOKS
from hookcli.system.importing import load_object

pytestmark = pytest.mark.xdist_group("ranks")  # one pool of ranks

EXAMPLE = Path(__file__).parents[3] / "examples" / "fp16_allreduce.py"
HEAD = "import torch, torch.distributed as dist\nfrom torch.futures import Future\n"


@pytest.mark.parametrize("name", [*COMM_HOOKS, "fp16+powersgd", "bf16+quantize-per-tensor", "fp16+allreduce"])
def test_pytorchs_own(name: str) -> None:
    hook = find_hook(name)
    assert hook.name == name and callable(hook.function)
    assert hook.chained == any(part in name for part in ("powersgd", "quantize"))
    assert hook.exact == (name == "allreduce")


def test_powersgd_gets_a_state_of_its_own_each_time() -> None:
    hook = find_hook("fp16+powersgd", rank_approximation=3, warm_up=5)
    first, second = hook.make_state(), hook.make_state()
    assert first is not second and (first.matrix_approximation_rank, first.start_powerSGD_iter) == (3, 5)


WRONG = {
    "fp61": "unknown --hook 'fp61'; did you mean fp16",
    "fp16+powersdg": "unknown --hook 'powersdg'; did you mean powersgd",
    "fp8+powersgd": "unknown --hook 'fp8+powersgd'; did you mean powersgd",
    "own.py:nope": "own.py: unknown name 'nope'",
    "own.py:number": "--hook own.py:number: is of type int; give a function (state, bucket) -> Future",
    "own.py:Class": "--hook own.py:Class: is a class; give a function",
    "own.py:misnamed": "--hook own.py:misnamed: takes (state, grads); a communication hook takes (state, bucket), and "
    "PyTorch requires the second to be named bucket",
    "own.py:three": "--hook own.py:three: takes (state, bucket, more); a",
    "own.py:swapped": "--hook own.py:swapped: takes (bucket, state); a",
    "own.py:wrong": "is annotated with Tensor; PyTorch accepts `bucket: torch.distributed.GradBucket`",
    "own.py:wrong_return": "is annotated with Tensor; PyTorch accepts `-> torch.futures.Future",
    "text.py:hook": "--hook text.py:hook: PyTorch rejects annotations that are strings ('dist.GradBucket'): remove "
    "`from __future__ import annotations`, or the annotations",
}
OWN = f"""{HEAD}
number = 3
class Class: pass
def misnamed(state, grads): ...
def three(state, bucket, more): ...
def swapped(bucket, state): ...
def wrong(state, bucket: torch.Tensor): ...
def wrong_return(state, bucket) -> torch.Tensor: ...
def right(state: object, bucket: dist.GradBucket) -> Future[torch.Tensor]: ...
def extra(state, bucket, size=3): ...
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(OWN)
    text = f"from __future__ import annotations\n{HEAD}def hook(state, bucket: dist.GradBucket): ...\n"
    (tmp_path / "text.py").write_text(text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("spec", WRONG)
def test_one_clear_line(own: None, spec: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_hook(spec)
    assert WRONG[spec] in str(raised.value)


def test_powersgd_can_not_start_before_the_buckets_are_rebuilt() -> None:
    with pytest.raises(UsageError, match="--warm-up 1: PowerSGD starts after 2 steps at the earliest"):
        find_hook("powersgd", warm_up=1)
    with pytest.raises(ValueError, match="start_powerSGD_iter"):  # PyTorch's own rule
        find_hook("powersgd").make_state.func(None, start_powerSGD_iter=1)


@pytest.mark.parametrize("name", ["right", "extra", "number", "misnamed", "wrong", "wrong_return"])
def test_what_is_refused_is_what_pytorch_refuses(own: None, name: str) -> None:
    """PyTorch's own check, of the same functions. (The order of arguments it does not look at.)"""
    hook = load_object(f"own.py:{name}")
    if name in ("right", "extra"):
        DistributedDataParallel._check_comm_hook(_Throwing(), hook)
        assert find_hook(f"own.py:{name}").function.__name__ == name
        return
    with pytest.raises((TypeError, ValueError, KeyError)):
        DistributedDataParallel._check_comm_hook(_Throwing(), hook)


class _Throwing:
    def _log_and_throw(self, kind: type[Exception], text: str) -> None:
        raise kind(text)


@pytest.mark.sweep
def test_the_example_is_pytorchs_fp16_hook_bit_for_bit() -> None:
    for mine, theirs in run_ranks(2, comm_jobs.two_results, f"{EXAMPLE}:hook", "fp16"):
        assert torch.equal(mine, theirs)
    reports = run_ranks(2, comm_jobs.run, [f"{EXAMPLE}:hook", "fp16"])
    for report in reports:
        pairs = zip(report.rows[::2], report.rows[1::2], strict=True)
        assert all((a["bytes_after"], a["error_max"]) == (b["bytes_after"], b["error_max"]) for a, b in pairs)
        assert report.rows[0]["hook"] == "fp16_allreduce.py:hook"
