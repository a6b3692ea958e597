"""The command `hookcli skill`."""

from __future__ import annotations

from pathlib import Path

from hookcli.system.files import content
from hookcli.system.stdout import require_stdout, write_report

EXAMPLES = ("hookcli skill",)


def skill() -> int:
    """Print instructions for an agent that uses hookcli.

    A skill file (SKILL.md): which command answers which question, and how to read the answers.
    """
    require_stdout()
    write_report(content(Path(__file__).with_name("skill.md")).decode())
    return 0
