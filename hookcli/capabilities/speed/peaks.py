"""The peaks of devices in dense matrix products: published ones, and a CPU's as measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from time import perf_counter
from typing import NamedTuple

import torch

from hookcli.errors import UsageError

_SIZE, _TIMES = 384, 3  # of a matrix product on the CPU, of which the fastest counts
_PREFIXES = {"": 1.0, "G": 1e9, "T": 1e12, "P": 1e15}
_NVIDIA = "https://www.nvidia.com/en-us/data-center"


class Published(NamedTuple):
    """TFLOP/s in dense products by kind, as the vendor gives them at `source`: half of those with sparsity.

    The figures of the H100, H200, A100 and L4 agree with the tables of torchtitan and Lightning.
    """

    source: str
    tflops: Mapping[str, float]


def _halves(tflops: float) -> dict[str, float]:
    return {"float16": tflops, "bfloat16": tflops}


PUBLISHED: Mapping[str, Published] = {
    "B200": Published(f"{_NVIDIA}/dgx-b200/", {**_halves(2250), "tf32": 1125}),
    "H200 NVL": Published(f"{_NVIDIA}/h200/", {**_halves(836), "tf32": 418, "float32": 60, "float64": 60}),
    "H200": Published(f"{_NVIDIA}/h200/", {**_halves(989), "tf32": 494, "float32": 67, "float64": 67}),
    "H100 PCIe": Published(f"{_NVIDIA}/h100/", {**_halves(756), "tf32": 378, "float32": 51, "float64": 51}),
    "H100 NVL": Published(f"{_NVIDIA}/h100/", {**_halves(835), "tf32": 418, "float32": 60, "float64": 60}),
    "H100": Published(f"{_NVIDIA}/h100/", {**_halves(989), "tf32": 494, "float32": 67, "float64": 67}),
    "L40S": Published(f"{_NVIDIA}/l40s/", {**_halves(362), "tf32": 183, "float32": 91.6}),
    "L4": Published(f"{_NVIDIA}/l4/", {**_halves(121), "tf32": 60, "float32": 30.3}),
    "A100": Published(f"{_NVIDIA}/a100/", {**_halves(312), "tf32": 156, "float32": 19.5, "float64": 19.5}),
    "A10": Published(f"{_NVIDIA}/products/a10-gpu/", {**_halves(125), "tf32": 62.5, "float32": 31.2}),
    "T4": Published(f"{_NVIDIA}/tesla-t4/", {"float16": 65, "float32": 8.1}),
    "V100": Published(f"{_NVIDIA}/v100/", {"float16": 125, "float32": 15.7, "float64": 7.8}),
    "MI300X": Published(
        "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html",
        {**_halves(1307), "tf32": 653, "float32": 163, "float64": 163},
    ),
}
"""By a word, or words, in the device's name; the first that fits counts."""


def parsed_peak(text: str) -> float | None:
    """The operations per second of "989e12" or "989T". Raises UsageError for anything else."""
    match = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([GTP]?)", text.strip())
    try:
        flops = float(match[1]) * _PREFIXES[match[2]] if match else 0.0
    except ValueError:
        flops = 0.0
    if not flops:
        raise UsageError(f"--peak-flops {text}: the device's operations per second needed, for example 989T or 989e12")
    return flops


def peak_of(device: torch.device, dtype: torch.dtype) -> float | None:
    """The operations per second of this device at its peak, in products of this dtype; None if it is not known."""
    if device.type == "cpu":
        return measured_peak(dtype)
    return published_peak(torch.cuda.get_device_name(device), kind_of(dtype)) if device.type == "cuda" else None


def published_peak(name: str, kind: str) -> float | None:
    """The published peak of a device of this name in products of this kind; None if it is not known."""
    words = next((words for words in PUBLISHED if fits(words, name)), "")
    tflops = PUBLISHED[words].tflops.get(kind) if words else None
    return tflops * 1e12 if tflops else None


def fits(words: str, name: str) -> bool:
    """True if the name of a device has all of these words: NVIDIA H100 80GB HBM3 is no "H100 PCIe"."""
    return set(words.split()) <= set(re.split(r"[\s-]+", name))


def kind_of(dtype: torch.dtype) -> str:
    """The kind of products that tensors of this dtype have: float32 may use TF32."""
    fast = dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if fast else str(dtype).removeprefix("torch.")


def measured_peak(dtype: torch.dtype) -> float:
    """The operations per second of a matrix product on the CPU, as it is now."""
    with torch.no_grad():
        x = torch.ones(_SIZE, _SIZE, dtype=dtype, device="cpu")
        seconds = []
        for _ in range(1 + _TIMES):  # the first one may prepare something
            began = perf_counter()
            torch.mm(x, x)
            seconds.append(perf_counter() - began)
    return 2 * _SIZE**3 / min(seconds[1:])
