"""Imports the libraries whose models are served, each an extra of hookcli.

Configurations come from the Hugging Face hub's cache on this machine, else from the hub; weights are never downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn
from unittest.mock import patch

from hookcli.errors import UsageError, in_brief

CONFIG = "config.json"
_PATIENCE = 10.0  # seconds to wait for the hub's answer; its own client tries again and again for 23 seconds


def import_library(name: str, spec: str, extra: str | None = None) -> ModuleType:
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
def load_tokenizer(transformers: ModuleType, folder: str) -> Any:
    """The tokenizer in a folder, of Transformers' own classes."""
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _refuse(*_: object, **__: object) -> NoReturn:
    """Raise the error that makes Transformers use its own code in place of a kernel, where it has some."""
    raise FileNotFoundError("hookcli runs no code from the hub or beside a configuration")


def in_hub_cache(repository: str, *names: str) -> Path | None:
    """The first of these files that the hub's cache on this machine holds for a repository, maybe `NAME@REVISION`."""
    hub = import_library("huggingface_hub", repository, "huggingface")
    name, _, revision = repository.partition("@")
    for file in names:
        path = hub.try_to_load_from_cache(name, file, revision=revision or None)
        if isinstance(path, str):
            return Path(path)
    return None


def config_folder(repository: str, spec: str) -> Path:
    """The folder with a repository's config.json, from the cache, else downloaded into it.

    Raises UsageError if there is no such repository, if it is gated, or if the hub can't be reached.
    """
    hub = import_library("huggingface_hub", spec, "huggingface")
    name, _, revision = repository.partition("@")
    try:
        if cached := in_hub_cache(repository, CONFIG):
            return cached.parent
        url = hub.hf_hub_url(name, CONFIG, revision=revision or None)
        head = hub.get_session().head(url, headers=hub.utils.build_hf_headers(), timeout=_PATIENCE)
        hub.utils.hf_raise_for_status(head)
        return Path(hub.hf_hub_download(name, CONFIG, revision=revision or None)).parent
    except UsageError:
        raise
    except Exception as error:  # of the hub's client, or of the one that it uses for HTTP
        if isinstance(error, hub.errors.GatedRepoError):
            why = f"gated: accept its terms at https://huggingface.co/{repository} and log in with `hf auth login`"
        elif isinstance(error, hub.errors.RepositoryNotFoundError):
            why = "neither a folder with a config.json nor a public name on the Hugging Face hub"
        elif isinstance(error, hub.errors.EntryNotFoundError):
            why = "the hub has no config.json for it"
        elif isinstance(error, hub.errors.HFValidationError):
            why = "no such folder, and not a name that the Hugging Face hub allows"
        else:
            offline = "without network only local folders and names in the hub's cache work"
            why = f"no such folder here, and the Hugging Face hub can't be reached ({in_brief(error)}); {offline}"
        raise UsageError(f"{spec}: {why}") from error
