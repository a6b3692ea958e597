"""Reads the contents of a torch.package with `zipfile`, without running any of it or importing torch."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hookcli.errors import UsageError, shortened, unknown
from hookcli.system.files import exists, is_folder, member, opened

MODEL_RESOURCE = "model.pkl"
INPUT_RESOURCE = "hookcli.json"
"""The resource beside the model's pickle in which hookcli notes the model's input."""

_EXTERNS = ".data/extern_modules"
_PICKLES = (".pkl", ".pickle")


@dataclass(frozen=True, slots=True)
class Archive:
    """The records of a package with their sizes in bytes, the modules it expects from outside, its file's size."""

    path: Path
    sizes: Mapping[str, int]
    externs: tuple[str, ...]
    file_bytes: int

    @property
    def modules(self) -> list[str]:
        """The Python modules whose source the package holds, including mocks."""
        sources = (name for name in self.sizes if name.endswith(".py") and not name.startswith(".data/"))
        return [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in sources]

    @property
    def pickles(self) -> list[str]:
        """The records that hold objects, such as `model/model.pkl`."""
        return [name for name in self.sizes if name.endswith(_PICKLES) and not name.startswith(".data/")]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all storages; tensors may share one."""
        return sum(size for name, size in self.sizes.items() if name.endswith(".storage") and name.startswith(".data/"))

    def source_bytes(self, module: str) -> int:
        """Bytes of a module's source in the package."""
        path = module.replace(".", "/")
        return self.sizes.get(f"{path}.py") or self.sizes[f"{path}/__init__.py"]

    def resource(self, wanted: str | None) -> str:
        """The pickle to load: the named one, else `model/model.pkl`, else the only one. Raises UsageError."""
        if wanted is not None:
            if wanted not in self.sizes:
                raise UsageError(f"{self.path}: {unknown('--resource', wanted, self.pickles)}")
            return wanted
        if f"model/{MODEL_RESOURCE}" in self.sizes:
            return f"model/{MODEL_RESOURCE}"
        if len(self.pickles) == 1:
            return self.pickles[0]
        if not self.pickles:
            raise UsageError(f"{self.path}: the package holds no pickled object (no .pkl among its resources)")
        raise UsageError(f"{self.path}: which object? Give --resource, one of {', '.join(self.pickles)}")

    def noted_input(self, resource: str) -> dict[str, object] | None:
        """hookcli's note about the model's input in a resource; None if it did not make the package."""
        name = f"{resource.rpartition('/')[0]}/{INPUT_RESOURCE}"
        if name not in self.sizes:
            return None
        with opened(self.path) as file, zipfile.ZipFile(file) as archive:
            try:
                noted = json.loads(member(archive, root_of(archive) + name))
            except ValueError:
                return None
        return noted if isinstance(noted, dict) else None


def read_archive(file: str | Path) -> Archive:
    """The contents of a package. Raises UsageError if the file is not a package."""
    path = Path(file)
    if is_folder(path):
        raise UsageError(f"{str(file)!r} is a folder, not a package")
    if not exists(path):
        raise UsageError(f"no file {shortened(str(file))!r}")
    try:
        with opened(path) as stream, zipfile.ZipFile(stream) as archive:
            folder = root_of(archive)
            sizes = {item.filename.removeprefix(folder): item.file_size for item in archive.infolist()}
            if _EXTERNS not in sizes:
                exported = any(name.startswith("models/") for name in sizes)
                what = "torch.export wrote it" if exported else "a zip file without .data/extern_modules"
                what = "torch.save or torch.jit.save wrote it" if "data.pkl" in sizes else what
                raise UsageError(f"{file} is not a torch.package: {what}")
            return Archive(path, sizes, tuple(member(archive, folder + _EXTERNS).decode().split()), path.stat().st_size)
    except zipfile.BadZipFile as error:
        raise UsageError(f"{file} is not a torch.package, or is damaged ({error})") from error
    except OSError as error:
        raise UsageError(f"can't read {file}: {error.strerror or error}") from error


def root_of(archive: zipfile.ZipFile) -> str:
    """The folder of all records, which PyTorch names after the file that it first wrote."""
    return next((name.partition("/")[0] + "/" for name in archive.namelist()), "")
