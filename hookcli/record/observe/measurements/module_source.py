"""Python that builds a module anew: from its repr if that is enough, else from a pickle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pickletools import genops
from typing import Any
from zipfile import ZipFile

import torch
from torch import nn

from hookcli.record.observe.measurements.program_source import of_program
from hookcli.system.escaping import visible
from hookcli.system.files import member, opened
from hookcli.tensors import tree
from hookcli.tensors.random_state import random_states, set_random_states

PLAIN = (type(None), bool, int, float, complex, str)
"""Types whose values a repr makes anew."""
_MAIN = "__main__"


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """Python that builds a module: the `expression`, and the `definitions` that it needs before.

    The expression is `...` if a person has to build the module, and a `comment` says why.
    """

    expression: str
    definitions: str = ""
    comment: str = ""


def module_source(module: nn.Module, pickled: Path) -> ModuleSource:
    """Return Python that builds the module. Writes the file `pickled` if that is needed."""
    expression = f"torch.nn.{module!r}"
    if _builds(expression, module):
        return ModuleSource(expression)
    try:
        torch.save(module, pickled)
    except Exception as error:  # the class decides what can be pickled
        return _unknown(f"{tree.type_text(module)} can't be pickled ({error})")
    names = _names_in_program(pickled)
    try:
        lines = of_program(names)
    except (OSError, SyntaxError, LookupError) as error:
        pickled.unlink()
        return _unknown(f"{tree.type_text(module)} can't be built from the program's source ({error})")
    return ModuleSource("torch.load(here.with_suffix('.pt'), weights_only=False)", "\n".join(lines))


def _unknown(why: str) -> ModuleSource:
    return ModuleSource("...", comment=f"  # {visible(why)}: build it as the program does")


def _names_in_program(pickled: Path) -> set[str]:
    """Return the names that a pickle takes from the program itself, which has no module to import."""
    with opened(pickled) as file, ZipFile(file) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        found = [str(value).split(" ") for code, value, _ in genops(member(archive, name)) if code.name == "GLOBAL"]
    return {name for module, name in found if module == _MAIN}


def _builds(expression: str, module: nn.Module) -> bool:
    """True if it builds a module of the same class and settings, with parameters and buffers of the same sizes."""
    if not type(module).__module__.startswith("torch.nn.") or "\n" in expression:
        return False
    states = random_states([])
    try:
        with torch.device("meta"):
            made = eval(expression, {"torch": torch})
    except Exception:  # the repr is for people
        return False
    finally:
        set_random_states([], states)
    sizes = [{key: x.shape for key, x in (*m.named_parameters(), *m.named_buffers())} for m in (made, module)]
    return type(made) is type(module) and sizes[0] == sizes[1] and _same_settings(made, module)


def _same_settings(made: nn.Module, module: nn.Module) -> bool:
    """True if their public attributes are equal, since a repr may omit some. The script sets `training`."""
    ours, theirs = ({key: x for key, x in vars(m).items() if not key.startswith("_")} for m in (made, module))
    return ours.keys() == theirs.keys() and all(_equal(ours[key], theirs[key]) for key in ours if key != "training")


def _equal(one: Any, other: Any) -> bool:
    if type(one) in (list, tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(_equal, one, other))
    return one is other or (type(one) is type(other) and type(one) in PLAIN and one == other)
