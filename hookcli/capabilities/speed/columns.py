"""Columns of the work of a step: samples, tokens and operations, in a step and per second."""

from typing import Any

from hookcli.table.column import Column, Kind, Merge

_NUMBER: dict[str, Any] = {"kind": Kind.QUANTITY, "compared": False, "merge": Merge.SUM}  # over ranks
_RATE: dict[str, Any] = {**_NUMBER, "kind": Kind.FIGURE}  # less than 1 where a step takes long

DECLARED = (
    Column("step_samples", "Samples", **_NUMBER),
    Column("step_tokens", "Tokens", **_NUMBER),
    Column("step_flops", "FLOP", full="Floating-point operations of a step", **_NUMBER),
    Column("samples_per_second", "Samples/s", **_RATE),
    Column("tokens_per_second", "Tokens/s", **_RATE),
    Column("flops_per_second", "FLOP/s", full="Floating-point operations per second", **_NUMBER),
    Column("peak_flops", "Peak FLOP/s", charted=False, full="The device's peak, in operations per second", **_NUMBER),
    Column(
        "peak_share",
        "of the peak",
        kind=Kind.SHARE,
        full="Share of the device's peak (MFU)",
        compared=False,
        merge=Merge.LEAST,
    ),
)

CHARTS = {
    "samples_per_second": "Samples per second",
    "tokens_per_second": "Tokens per second",
    "flops_per_second": "Floating-point operations per second",
    "peak_share": "Share of the device's peak (MFU)",
}
