"""Imports the libraries whose models are served, each an extra of hookcli."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hookcli.errors import UsageError, in_brief


def import_library(name: str, spec: str, extra: str | None = None) -> Any:
    """The module. Raises UsageError, with the extra to install, where it is missing or does not fit this torch."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise _broken(name, spec, error) from error
        raise UsageError(f"{spec} needs {error.name}: pip install 'hookcli[{extra or name}]'") from error
    except (ImportError, RuntimeError, AttributeError) as error:
        raise _broken(name, spec, error) from error


def _broken(name: str, spec: str, error: Exception) -> UsageError:
    return UsageError(f"{spec}: importing {name} failed ({in_brief(error)}); pip install -U torch {name}")
