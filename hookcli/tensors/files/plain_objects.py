"""Lets `torch.load(weights_only=True)` pass over objects beside a state dict, such as an argparse.Namespace.

Each class that PyTorch refuses is replaced by an inert class of hookcli's: no code of the file is run, and no class
that it names is imported.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

_OF_PYTHON_2 = {"__builtin__", "commands", "copy_reg", "thread"}  # as torch.save names builtins, subprocess and others
_PLAIN = {"pathlib", "datetime", "uuid", "decimal", "fractions"}
_NEVER_CALLED = (sys.stdlib_module_names | _OF_PYTHON_2) - _PLAIN
"""Packages of which no object beside a state dict is pickled as a call, as paths, dates and enums are."""
_OF_TORCH = ("torch.torch_version.TorchVersion",)  # a text; whatever else is torch's, PyTorch knows whether it is plain


class _Inert(type):
    """The class of inert classes. A call makes an object without a state; one of `os.system` shows a hostile file."""

    def __call__(cls, *args: object) -> object:
        if cls.__module__.partition(".")[0] in _NEVER_CALLED:
            raise pickle.UnpicklingError(f"a call of the global {cls.__module__}.{cls.__qualname__}")
        return super().__call__(*args)


class StandIn(metaclass=_Inert):
    """An object that was not made; `attributes` is its pickled state, if that is a dict."""

    attributes: dict[object, object]

    def __new__(cls, *args: object) -> StandIn:
        made = super().__new__(cls)
        made.attributes = {}
        return made

    @property
    def is_array(self) -> bool:
        """True in the place of a NumPy array."""
        return type(self).__module__.startswith("numpy.") and type(self).__qualname__ == "_reconstruct"

    @property
    def in_words(self) -> str:
        """The name of the class that the file names."""
        return "a NumPy array" if self.is_array else f"{type(self).__module__}.{type(self).__qualname__}"

    def __setstate__(self, state: object) -> None:
        self.attributes = state if isinstance(state, dict) else {}


@contextmanager
def with_stand_ins(file: Path) -> Iterator[bool]:
    """Let PyTorch make stand-ins for what it would refuse in this file; yields whether there is any such class."""
    names = get_unsafe_globals_in_checkpoint(str(file))
    refused = [name for name in names if not name.startswith("torch.") or name in _OF_TORCH]
    with safe_globals([(_stand_in(name), name) for name in refused]):
        yield bool(refused)


def _stand_in(name: str) -> type[StandIn]:
    class Inert(StandIn):
        """The stand-in for one class."""

    Inert.__module__, _, Inert.__qualname__ = name.rpartition(".")
    return Inert
