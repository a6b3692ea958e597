"""Keeps the report of a run whose result can't change, and finds it again without importing torch."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from hookcli.commands.added_options import BUDGETS
from hookcli.commands.options import RUNNING, SHOWING, Options
from hookcli.sources.identity import code_folders, identity
from hookcli.system.cache import Cache, imported, stamp
from hookcli.system.files import exists
from hookcli.system.torchrun import leftover, world
from hookcli.table import Report, document

# Options that change the report, and options that change only how it is shown. With any other option, such as one that
# names the user's own data or code, no report is cached.
_MEASURED = (*RUNNING, "fastpath", "ops", "match", "type")
_SHOWN = ("depth", *SHOWING)
_LIBRARIES = ("TORCH_", "PYTORCH_", "TIMM_", "HF_", "TRANSFORMERS_", "OMP_", "MKL_")


class CachedReport:
    """The reports of a command on one model under these options, and under `settings` of the command's own.

    It is kept by everything that it depends on: options, variables of the environment that libraries read, and with a
    hash of the files from which the run imported the code of the model, of torch and of hookcli. The report of a run on
    the meta device is the same on every machine, any other holds for this one.
    """

    def __init__(
        self,
        command: str,
        spec: str,
        options: Options,
        wanted: bool = True,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self._cache = Cache("reports")
        self._spec = spec
        self._key = _key(command, spec, options, settings or {}) if wanted else None

    def get(self) -> list[Report]:
        """Return the reports that were kept, marked as cached; none if there are none."""
        for key in (self._key, self._key and self._key + _machine()):
            text = self._cache.get(key) if key else None
            if text:
                with suppress(KeyError, TypeError, ValueError, AttributeError, RecursionError):
                    data = json.loads(text)
                    if stamp(data["files"]) != data["stamp"]:  # edited
                        continue
                    reports = [Report.from_dict(item) for item in data["reports"]]
                    return [replace(report, meta={**report.meta, "cached": True}) for report in reports]
        return []

    def put(self, reports: Sequence[Report]) -> None:
        """Keep the reports of a run that came to its end."""
        if self._key and (files := imported(code_folders(self._spec))):
            anywhere = all(report.meta.get("device") == "meta" for report in reports)
            held = {"files": files, "stamp": stamp(files), **document(reports)}
            text = json.dumps(held, separators=(",", ":"))
            self._cache.put(self._key + ("" if anywhere else _machine()), text)


def _key(command: str, spec: str, options: Options, settings: Mapping[str, object]) -> str | None:
    """Everything that the report depends on; None for a report that is not cached."""
    asked, plain = asdict(options), asdict(Options())
    if any(asked[name] != plain[name] for name in asked.keys() - {*_MEASURED, *_SHOWN}):
        return None
    files = filter(None, [options.weights, *(item.partition("=")[2] for item in options.arg)])
    remarked_on = world().size > 1 or leftover()
    if options.device not in ("cpu", "meta") or any(map(exists, files)) or remarked_on:
        return None
    code = identity(spec)
    measured = {name: asked[name] for name in _MEASURED} | {"settings": {**settings}}
    # A token is a secret, which files of the cache should not hold.
    variables = sorted(os.environ.items())
    read = {name: value for name, value in variables if name.startswith(_LIBRARIES) and "TOKEN" not in name}
    kernels = _machine() if any(settings.get(name) is not None for name in BUDGETS) else ""  # a peak depends on them
    return code and f"{command} {json.dumps([measured, read])}\n{code}{kernels}"


def _machine() -> str:
    """Name this machine: values, and what depends on them, may be others elsewhere."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"\n{platform.node()} {processors}"
