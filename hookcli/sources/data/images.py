"""Input from pictures, prepared by the transforms that a model's weights were evaluated with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hookcli.errors import UserCode, in_brief, shortened
from hookcli.sources.base import Recipe, Transforms
from hookcli.sources.data.base import ITEMS, AllInput, Batches, Data, wrong
from hookcli.system import files
from hookcli.table.formatting import listed
from hookcli.table.meta import Meta
from hookcli.tensors import tree

_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


def image_input(names: Sequence[str], batches: int | None) -> Data:
    """The pictures in files and folders, in order of their names, folders within folders included.

    Raises UsageError for a name that is not there, or a folder without pictures.
    """
    pictures = [picture for name in names for picture in _pictures(name)]
    option = " ".join(f"--image {shortened(name)}" for name in names)

    def open_(recipe: Recipe, size: int | None) -> Batches:
        if recipe.transforms is None:
            why = f"{recipe.name} comes with no transforms for pictures; give tensors by --data or --input-file"
            raise wrong("image", why)
        with UserCode(
            lambda error: wrong("image", f"the transforms of {recipe.name} can't be made: {in_brief(error)}")
        ):
            transforms = recipe.transforms()
        number = min(size or ITEMS, len(pictures))
        groups = [pictures[start : start + number] for start in range(0, len(pictures), number)]
        each = (AllInput(recipe.arrange(_items(group, transforms, recipe.batched))) for group in groups)
        how: Meta = {"pictures": len(pictures), "transforms": " ".join(repr(transforms).split())}
        return Batches(each, len(groups), how)

    return Data(option, open_, batches)


def _pictures(name: str) -> list[Path]:
    path = Path(name)
    if files.is_file(path):
        return [path]
    if not files.is_folder(path):
        raise wrong("image", f"no file or folder {shortened(name)!r}")
    pictures = sorted(x for x in path.rglob("*") if x.suffix.lower() in _SUFFIXES and x.is_file())
    if not pictures:
        raise wrong("image", f"no picture in {shortened(name)!r} (looked for {listed(_SUFFIXES, len(_SUFFIXES))})")
    return pictures


def _items(group: Sequence[Path], transforms: Transforms, batched: bool) -> list[Tensor]:
    """The pictures as one batch, or as a list where the model takes one."""
    items = [_item(picture, transforms) for picture in group]
    if not batched:
        return items
    shapes = {item.shape: picture for item, picture in zip(items, group, strict=True)}
    if len(shapes) > 1:
        (a, one), (b, other) = ((tree.shape_text(torch.empty(s, device="meta")), x) for s, x in [*shapes.items()][:2])
        sizes = f"{one.name} becomes {a}, {other.name} {b}"
        raise wrong("image", f"the transforms keep pictures' sizes apart ({sizes}); use --batch-size 1")
    return [torch.stack(items)]


def _item(picture: Path, transforms: Transforms) -> Tensor:
    try:
        from PIL import Image
    except ImportError as error:
        raise wrong("image", "reading pictures needs Pillow: pip install 'hookcli[images]'") from error
    try:
        with files.opened(picture) as file, Image.open(file) as opened:
            image = opened.convert("RGB")
    except Exception as error:  # Pillow's readers fail in many ways: on no picture, a truncated one, a huge one
        raise wrong(
            "image", f"{shortened(str(picture))} is not a picture that Pillow can read ({in_brief(error)})"
        ) from error
    with UserCode(lambda error: wrong("image", f"the transforms failed on {picture}: {in_brief(error)}")):
        item = transforms(image)
    if not isinstance(item, Tensor):
        raise wrong("image", f"the transforms made {type(item).__name__} of {picture}, not a tensor")
    return item
