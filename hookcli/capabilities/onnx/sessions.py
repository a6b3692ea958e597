"""Values and sessions of ONNX Runtime: the CPU alone, no library of operators but its own, and bounded memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from hookcli.errors import message_of, shortened
from hookcli.system.interrupts import interruptible
from hookcli.system.memory import available_memory

_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_WHERE = re.compile(r"^Non-zero status code .*? Status Message: |/\S+:\d+ .*?\) (?=\S)", re.DOTALL)
_NARROW = re.compile(r"U?INT[1-7]")  # PyTorch has their names, and nothing more
_SHOWN = 300  # letters of a message
_VIEWED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # NumPy has neither bfloat16 nor float8
_WITHIN = re.compile(r"(seq|optional|tensor)\((.+)\)")


@cache
def dtypes() -> dict[int, torch.dtype | None]:
    """PyTorch's dtypes of ONNX's types, whose names are the same: FLOAT, INT64; None for others, such as STRING."""
    from onnx import TensorProto

    numbers = dict(TensorProto.DataType.items())
    known = {name: None if _NARROW.fullmatch(name) else getattr(torch, name.lower(), None) for name in numbers}
    for name, dtype in vars(torch).items():
        if name.startswith("float8"):  # FLOAT8E4M3FN
            known[name.upper().replace("_", "")] = dtype
    return {number: known.get(name) for name, number in numbers.items() if number}


@cache
def codes() -> dict[torch.dtype, int]:
    """ONNX's types by PyTorch's dtypes."""
    return {dtype: code for code, dtype in dtypes().items() if dtype is not None}


def to_value(x: object) -> Any:
    """A tensor as ONNX Runtime takes it, in the same memory where it is contiguous; its own values stay as they are."""
    from onnxruntime import OrtValue

    if not isinstance(x, Tensor):
        return x
    array = x.detach().contiguous().view(_VIEWED[x.element_size()]).numpy()
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array, codes()[x.dtype])


def as_bytes(x: Tensor) -> Any:
    """The elements of a tensor as an array of bytes."""
    return x.detach().contiguous().view(-1).view(torch.uint8).numpy()


def of_value(value: Any) -> Any:
    """A value of ONNX Runtime as a tensor; sequences, texts and absent values stay as they are."""
    return from_dlpack(value) if value.is_tensor() and value.data_type() != "tensor(string)" else value


def value_type(text: str) -> Any:
    """The type that ONNX Runtime writes as `seq(tensor(float))`, of any shape."""
    from onnx import TensorProto, TypeProto

    kind, inner = _WITHIN.fullmatch(text).groups()  # type: ignore[union-attr]
    if kind == "seq":
        return TypeProto(sequence_type=TypeProto.Sequence(elem_type=value_type(inner)))
    if kind == "optional":
        return TypeProto(optional_type=TypeProto.Optional(elem_type=value_type(inner)))
    names = {"float": "FLOAT", "double": "DOUBLE"}
    return TypeProto(
        tensor_type=TypeProto.Tensor(elem_type=TensorProto.DataType.Value(names.get(inner, inner.upper())))
    )


def session_options(threads: int) -> Any:
    """The options of a session with so many threads."""
    import onnxruntime

    bound_memory()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.use_env_allocators", "1")
    return options


def run_session(session: Any, names: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
    """The values of these names, each of ONNX Runtime. Ctrl-C ends it soon."""
    from onnxruntime import RunOptions

    options = RunOptions()
    run = partial(session.run_with_ort_values, [*names], dict(feed), options)
    values: list[Any] = interruptible(run, partial(setattr, options, "terminate", True))
    return values


def why_failed(error: Exception) -> str:
    """An error of ONNX Runtime in brief; its classes have no base in common."""
    text = _PREFIX.sub("", message_of(error).strip())
    why = shortened(_WHERE.sub("", text).partition("\n")[0], _SHOWN).rstrip(". ")
    return "it needs more memory than this machine has available" if "AllocateRaw" in text else why


@cache
def bound_memory() -> None:
    """Let ONNX Runtime fail, and not the machine, where a graph asks for more memory than there is."""
    import onnxruntime as ort

    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    arena = ort.OrtArenaCfg({"max_mem": available_memory() or 0, "arena_extend_strategy": 1})
    with suppress(RuntimeError):  # the program has its own allocator already
        ort.create_and_register_allocator(info, arena)
