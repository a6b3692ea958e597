"""Imports the libraries whose models are served, each an extra of hookcli."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn
from unittest.mock import patch

from hookcli.errors import UsageError, in_brief


def import_library(name: str, spec: str, extra: str | None = None) -> Any:
    """The module. Raises UsageError, with the extra to install, where it is missing or does not fit this torch."""
    try:
        return import_module(name)
    except (ImportError, RuntimeError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
            raise UsageError(f"{spec} needs {error.name}: pip install 'hookcli[{extra or name}]'") from error
        why = f"importing {name} failed ({in_brief(error)}); pip install -U torch {name}"
        raise UsageError(f"{spec}: {why}") from error


@contextmanager
def without_remote_code() -> Iterator[None]:
    """Keep Transformers from running the code of a folder or of the hub, and from asking whether to, during the block.

    `trust_remote_code=False` alone does not reach the parts of a configuration, and kernels need no consent.
    """
    dynamic = import_module("transformers.dynamic_module_utils")
    kernels = import_module("transformers.integrations.hub_kernels")
    with (
        patch.object(dynamic, "TIME_OUT_REMOTE_CODE", 0),
        patch.object(dynamic, "check_imports", _refuse),
        patch.object(dynamic, "get_class_in_module", _refuse),
        patch.object(kernels, "get_kernel", _refuse, create=True),
    ):
        yield


@without_remote_code()
def load_tokenizer(transformers: Any, folder: str) -> Any:
    """The tokenizer in a folder, of Transformers' own classes."""
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    """Raise the error that makes Transformers use its own code in place of a kernel, where it has some."""
    raise FileNotFoundError("hookcli runs no code from the hub or beside a configuration")
