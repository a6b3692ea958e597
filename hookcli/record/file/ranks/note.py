"""The note in a folder of parts, which says whose launch they are of. Processes of several launches may race for it."""

from __future__ import annotations

import errno
import re
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from hookcli.system.files import content

NOTE = ".run"
ANY_NOTE = re.compile(r"\.run(-[0-9a-f]{32})?")
"""The names of the note, and of one whose writer was killed."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)


def noted(folder: Path) -> str | None:
    """The launch that the folder belongs to; None if none has claimed it."""
    with suppress(OSError, ValueError):
        return content(folder / NOTE, 4096, folder).decode().removesuffix("\n")
    return None


def leave_note(folder: Path, launch: str) -> None:
    """Write the note, whole or not at all. Raises FileExistsError if there is one, OSError if it can't be written."""
    note, text = folder / NOTE, folder / f"{NOTE}-{uuid4().hex}"
    try:
        text.write_text(f"{launch}\n")
        note.hardlink_to(text)  # it gets its name once it can be read, and only one does
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        text.rename(note)  # on a file system without hard links
    finally:
        text.unlink(missing_ok=True)
