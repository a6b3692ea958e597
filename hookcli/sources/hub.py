"""Finds configurations in the Hugging Face hub's cache on this machine, else on the hub. Never gets weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hookcli.errors import UsageError, in_brief
from hookcli.sources.libraries import import_library

CONFIG = "config.json"
_PATIENCE = 10.0  # seconds to wait for the hub's answer; its own client tries again and again for 23 seconds


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
        raise UsageError(f"{spec}: {_reason(hub.errors, error, repository)}") from error


def _reason(errors: Any, error: Exception, repository: str) -> str:
    """The reason why there is no configuration, in words."""
    if isinstance(error, errors.GatedRepoError):
        return f"gated: accept its terms at https://huggingface.co/{repository} and log in with `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "neither a folder with a config.json nor a public name on the Hugging Face hub"
    if isinstance(error, errors.EntryNotFoundError):
        return "the hub has no config.json for it"
    if isinstance(error, errors.HFValidationError):
        return "no such folder, and not a name that the Hugging Face hub allows"
    offline = "without network only local folders and names in the hub's cache work"
    return f"no such folder here, and the Hugging Face hub can't be reached ({in_brief(error)}); {offline}"
