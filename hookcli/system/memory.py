"""The memory that this machine has available."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from hookcli.system.files import content


def available_memory() -> int | None:
    """The bytes that programs can take without swapping: Linux's estimate, else the free pages; None if unknown."""
    with suppress(OSError):
        if match := re.search(r"^MemAvailable:\s+(\d+) kB", content("/proc/meminfo").decode("ascii"), re.MULTILINE):
            return int(match[1]) * 1024
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
