"""Writes GGUF files with the format's library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np


def made_gguf(file: Path, types: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Write a GGUF file with a tensor of each type; its values, dequantized by the library."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_token_list(["a", "bcd", "é"])
    writer.add_array("numbers", [1, 2, 3])
    values = {}
    for number, name in enumerate(types):
        kind = gguf.GGMLQuantizationType[name]
        x = np.random.default_rng(number).standard_normal((3, 512)).astype(np.float32)
        raw = gguf.quants.quantize(x, kind)
        writer.add_tensor(f"blk.{number}.{name}", raw, raw_dtype=kind)
        values[f"blk.{number}.{name}"] = gguf.quants.dequantize(raw, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values
