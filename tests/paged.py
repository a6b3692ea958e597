"""Reads back what a page carries: its payload, and the matrices of a record."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import numpy as np

from hookcli.table import relaxed

OTHERS = {32767: None, 32766: math.nan, 32765: math.inf, 32764: -math.inf}


def data(page: str) -> tuple[str, dict[str, Any]]:
    """The JSON document of a page, as its text, and the rest of the payload."""
    [packed] = re.findall(r'<script id="data"[^>]*>([^<]*)</script>', page)
    document, rest = gzip.decompress(b64decode(packed)).decode().split("\0")
    return document, json.loads(rest)


def payload(page: str) -> dict[str, Any]:
    """The payload of a page, its JSON document among it."""
    document, rest = data(page)
    return {**rest, **json.loads(document)}


def figures(text: str) -> list[float | None]:
    """The figures in a block, None where nothing was measured, by another way than the page's: through text."""
    data = np.frombuffer(zlib.decompress(b64decode(text)), np.uint8).reshape(4, -1).astype(np.int32)
    mantissas, exponents = (data[low] | (data[low + 1] << 8) for low in (0, 2))
    exponents = np.where(exponents >= 2**15, exponents - 2**16, exponents)
    mantissas = np.where(mantissas >= 2**15, mantissas - 2**16, mantissas)
    pairs = zip(mantissas.tolist(), exponents.tolist(), strict=True)
    return [OTHERS[m] if m in OTHERS else float(f"{m}e{e}") for m, e in pairs]


def counts(text: str) -> list[float | None]:
    """The counts in a block, None where there is none."""
    found = np.frombuffer(zlib.decompress(b64decode(text)), "<f8").tolist()
    return [None if math.isnan(count) else count for count in found]


def matrices(track: Mapping[str, Any]) -> dict[str, dict[tuple[str, str], list[float | None]]]:
    """The values of each statistic over the track's steps, by the module's fqn and path."""
    width, found = len(track["steps"]) - track["since"], {}
    for statistic in track["statistics"]:
        values = counts(statistic["counts"]) if "counts" in statistic else figures(statistic["figures"])
        places = [(module["fqn"], module["path"]) for module in track["modules"]]
        assert len(values) == len(places) * width
        found[statistic["name"]] = {place: values[i * width : (i + 1) * width] for i, place in enumerate(places)}
    return found


def series(figure: Mapping[str, Any]) -> list[Any]:
    """The values of a figure over the steps."""
    return [relaxed(value) for value in figure["values"]]
