"""Figures on accelerators without Triton: how often memory is read, what a failure leads to, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import assert_stats, float64_stats
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hookcli.engine.capture import capture
from hookcli.tensors import chunks, distance, torch_private
from hookcli.tensors import stats as module
from hookcli.tensors.devices import launch
from hookcli.tensors.stats import measure, resolve

N = 10_000


class Traffic(TorchDispatchMode):
    """Adds up the bytes of large tensors that operators read and write, and of those that they allocate."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.moved = self.allocated = 0
        self._known = {x.untyped_storage().data_ptr() for x in known}

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operator(*args, **(kwargs or {}))
        if not operator.is_view:
            large = [x for x in tree_leaves((args, kwargs, made)) if isinstance(x, Tensor) and x.numel() >= N]
            self.moved += sum(x.nbytes for x in large)
            for x in large:
                if x.untyped_storage().data_ptr() not in self._known:
                    self._known.add(x.untyped_storage().data_ptr())
                    self.allocated += x.nbytes
        return made


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's memory is taken for an accelerator's."""
    monkeypatch.setattr(chunks, "on_cpu", lambda values: False)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 80), (torch.bfloat16, 56), (torch.float64, 150)])
def test_operators_move_few_bytes_for_an_element(accelerator: None, dtype: torch.dtype, most: int) -> None:
    """All that is as large as the tensor counts, also what PyTorch takes isnan and the like apart into."""
    x = torch.randn(N).to(dtype)
    with Traffic(x) as traffic:
        pending = measure(x)
    assert 0 < traffic.moved <= most * N
    assert_stats(resolve([pending])[0], float64_stats(x))


def test_a_large_tensor_is_never_copied_whole(accelerator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "DEVICE_CHUNK", 1000)
    image = torch.randn(2, 3, 50, 50).to(memory_format=torch.channels_last)
    for x in (image, image[:, :, ::2]):
        with Traffic(x) as traffic:
            found = [measure(x), distance.compare(x, x)]
        assert traffic.allocated == 0 and len(found) == 2


class Failing:
    """A kernel that can't be launched."""

    def __init__(self, error: Exception) -> None:
        self.error, self.tried = error, 0

    def __call__(self) -> Tensor:
        self.tried += 1
        raise self.error


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> dict[str, None]:
    noted: dict[str, None] = {}
    monkeypatch.setattr(torch_private, "_notes", noted)
    monkeypatch.setattr(launch, "_given_up", False)
    monkeypatch.setattr(launch, "_interpreted", True)  # so that kernels are tried with the CPU's memory
    return noted


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'triton'"), "Triton is not installed"),
        (RuntimeError("\nFailed to find C compiler.\nPlease specify"), "RuntimeError: Failed to find C compiler."),
    ],
)
def test_kernels_that_fail_are_tried_once_and_said_once(
    accelerator: None, notes: dict[str, None], error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Failing(error)
    monkeypatch.setattr(launch, "_moments", lambda x: kernel())
    report = capture(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.randn(5, 3), ["activations"])[0]
    assert kernel.tried == 1 and len(report.rows) == 3 and not any(row.stats.nan for row in report.rows if row.stats)
    assert [note for note in report.meta["notes"] if said in note] == list(notes)


def test_a_device_without_memory_for_a_statistic_costs_that_row_alone(
    accelerator: None, notes: dict[str, None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels are tried again for the next tensor."""
    real, full = module.measure, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
    monkeypatch.setattr(launch, "_moments", lambda x: Failing(full)())
    with pytest.raises(torch.OutOfMemoryError):
        measure(torch.ones(3))
    assert not notes and not launch._given_up
    monkeypatch.setattr(launch, "_given_up", True)

    def measured(x: Tensor, hist: bool) -> Any:
        if x.shape[1] == 4:
            raise full
        return real(x, hist=hist)

    monkeypatch.setattr(module, "measure", measured)
    report = capture(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.randn(5, 3), ["activations"])[0]
    assert [row["fqn"] for row in report.rows] == ["", "1"]
    assert [(s.fqn, s.reason) for s in report.skipped] == [
        ("0", "can't be reduced (float32, the device is out of memory)")
    ]
