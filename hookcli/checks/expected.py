"""The outputs that `--expect-output` describes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hookcli.errors import UsageError, shortened

_SPEC = re.compile(
    r"(?:(?P<path>[^=]+)=)?(?P<shape>scalar|(?:\d{1,30}|\*)(?:[x,](?:\d{1,30}|\*))*)(?::(?P<dtype>\w+))?"
)


@dataclass(frozen=True, slots=True)
class Expected:
    """One tensor of the output: its sizes (None: any), and its dtype and path, if given."""

    sizes: tuple[int | None, ...]
    dtype: str | None = None
    path: str | None = None

    def __str__(self) -> str:
        sizes = "x".join("*" if size is None else str(size) for size in self.sizes) or "scalar"
        return (f"{self.path}=" if self.path else "") + sizes + (f":{self.dtype}" if self.dtype else "")

    def takes(self, shape: Sequence[int], dtype: str) -> bool:
        """True for a tensor of the expected shape and dtype."""
        sizes = tuple(size if wanted is None else wanted for wanted, size in zip(self.sizes, shape, strict=False))
        return len(shape) == len(self.sizes) and sizes == tuple(shape) and self.dtype in (None, dtype)


def parse_expected(text: str, option: str = "--expect-output") -> Expected:
    """Parse `*x1000:float32` or `out=*x21x224x224`; a UsageError begins with the `option` that the text came from."""
    match = _SPEC.fullmatch(text.replace(" ", ""))
    if not match:
        form = "a shape such as *x1000 (* is any size), optionally with a dtype and a path: out=*x21x224x224:float32"
        raise UsageError(f"{option} {shortened(text)!r}: give {form}".lstrip())
    parts = () if match["shape"] == "scalar" else re.split("[x,]", match["shape"])
    return Expected(tuple(None if part == "*" else int(part) for part in parts), match["dtype"], match["path"])
