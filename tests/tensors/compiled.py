"""Compiles Triton's kernels for GPUs that need not be at hand, and prints what each takes of them.

    python compiled.py brief|sweep

The interpreter accepts more than the compiler does. Compiling needs no driver: LLVM and ptxas come with Triton.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hookcli.tensors.devices import kernels, launch, pair_kernels

FLOATS = {"TILE": launch.TILE, "WIDE": False, "TABLED": False}
WIDE, TABLED = FLOATS | {"WIDE": True}, FLOATS | {"TABLED": True}
PAIR = {"TILE": launch.TILE, "WIDE": False, "A_TABLED": False, "B_TABLED": False, "INTEGERS": False}
GPUS = [
    ("cuda", 75),
    ("cuda", 80),
    ("cuda", 90),
    ("cuda", 100),
    ("hip", "gfx90a"),
    ("hip", "gfx942"),
    ("hip", "gfx1100"),
]
SCALARS = {"n": "i64", "each": "i32", "count": "i32", "rows": "*fp64", "row": "*fp64", "counts": "*i64"}


def variants() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any]]]:
    """A name, a kernel, the types of its tensors, and its constants."""
    for kind, constants in (
        ("bf16", FLOATS),
        ("fp32", FLOATS),
        ("i8", FLOATS),
        ("fp64", WIDE),
        ("i64", WIDE),
        ("u8", TABLED),
    ):
        types = {"values": f"*{kind}", "table": "*fp32"}
        yield f"moments of {kind}", kernels.moments, types, constants
        if constants is not WIDE:
            yield f"exponents of {kind}", kernels.exponents, types, {k: constants[k] for k in ("TILE", "TABLED")}
    for kinds, constants in (
        (("bf16", "bf16"), PAIR),
        (("fp32", "fp16"), PAIR),
        (("fp64", "fp32"), PAIR | {"WIDE": True}),
        (("i64", "i64"), PAIR | {"WIDE": True, "INTEGERS": True}),
        (("u8", "fp32"), PAIR | {"A_TABLED": True}),
    ):
        types = dict(zip(("a", "b"), (f"*{kind}" for kind in kinds), strict=True))
        yield (
            f"discrepancies of {kinds}",
            pair_kernels.discrepancies,
            types | {"a_table": "*fp32", "b_table": "*fp32"},
            constants,
        )
    for made in (kernels.merged, pair_kernels.merged):
        yield f"{made.__name__} of {made.__module__}", made, {}, {"ROOM": launch.PROGRAMS}


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], target: GPUTarget) -> dict[str, Any]:
    """The formats that the compiler made; of a CUDA kernel also its registers, and the bytes of its stack."""
    named = SCALARS | types | dict.fromkeys(constants, "constexpr")
    arguments = {name: named[name] for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    aligned = {(n,): [["tt.divisibility", 16]] for n, kind in enumerate(arguments.values()) if kind.startswith("*")}
    source = ASTSource(kernel, arguments, constexprs=places, attrs=aligned)
    asm = triton.compile(source, target=target, options=launch.OPTIONS).asm
    if "cubin" not in asm:
        return {"made": sorted(asm)}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = {name: int(number) for name, number in re.findall(r"(REG|STACK):(\d+)", said)}
    return {"made": sorted(asm), "vectors": len(re.findall(r"ld\.global\S*\.v[248]", asm["ptx"]))} | found


def main(sweep: bool) -> None:
    wanted = [GPUTarget(kind, arch, 64 if str(arch).startswith("gfx9") else 32) for kind, arch in GPUS]
    made = list(variants())
    if len(sys.argv) > 2:
        wanted, made = wanted[1:3], [v for v in made if v[0].startswith(sys.argv[2])]
    elif not sweep:
        wanted, made = wanted[1:2], made[:1]
    print(json.dumps({f"{t.arch}: {name}": compiled(*rest, t) for t in wanted for name, *rest in made}))


if __name__ == "__main__":
    main(sys.argv[1] == "sweep")
