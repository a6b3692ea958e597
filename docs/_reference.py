"""Writes the pages of docs/reference from what hookcli itself shows: the command line, the checks, and docstrings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hookcli.commands.help_pages import Entry, Page, command_page

API = {
    "Run a model": ("hookcli.capture", "hookcli.capture_recipe", "hookcli.Step", "hookcli.engine.capture.Hooking"),
    "Observe your own run": ("hookcli.watch", "hookcli.Watch", "hookcli.record.model_recording.ModelRecording"),
    "Judge a model": ("hookcli.check", "hookcli.pytest_plugin.ModelChecks"),
    "Make a page about a model": ("hookcli.report", "hookcli.ReportPage"),
    "Reports": (
        *("hookcli.table.Report", "hookcli.table.Column", "hookcli.table.Row", "hookcli.table.TensorStats"),
        *("hookcli.table.Skipped", "hookcli.table.Finding", "hookcli.table.meta.Meta", "hookcli.table.meta.Source"),
        "hookcli.table.document",
    ),
    "Interfaces of plugins": (
        *("hookcli.probes.base.Probe", "hookcli.hooks.session.HookSession", "hookcli.hooks.events.HookEvent"),
        *("hookcli.sources.base.ModelSource", "hookcli.sources.base.Recipe", "hookcli.checks.base.Check"),
        *("hookcli.reporters.base.Reporter", "hookcli.reporters.base.Exporter"),
    ),
    "Errors": ("hookcli.errors.HookcliError", "hookcli.errors.UsageError", "hookcli.errors.ModelError"),
}


def write(folder: Path) -> None:
    """Write the pages. A file that would not change keeps its time, so that Sphinx does not read it again."""
    from hookcli.commands import COMMANDS

    pages = {"commands/index": _commands_page(), "checks": _checks_page(), "api": _api_page()}
    pages |= {f"commands/{name}": _command_page(name) for name in COMMANDS}
    for name, text in pages.items():
        path = folder / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _commands_page() -> str:
    from hookcli.commands import COMMANDS, QUESTIONS

    parts = [
        "# All commands",
        "Generated from the command line's own options. Models, inputs and formats: [](../../commands.md).",
    ]
    for question, names in QUESTIONS.items():
        parts += [f"## {question}", "\n".join(f"- [hookcli {name}]({name}.md): {COMMANDS[name]}" for name in names)]
    tree = "\n".join(COMMANDS)
    return "\n\n".join([*parts, f"```{{toctree}}\n:hidden:\n\n{tree}\n```\n"])


def _command_page(name: str) -> str:
    import typer

    from hookcli.commands.app import build_app

    group: Any = typer.main.get_command(build_app())
    command = group.commands[name]
    context = group.make_context("hookcli", [name], resilient_parsing=True)
    page = MarkdownPage(f"# hookcli {name}")
    return command_page(command, type(context)(command, info_name=name, parent=context), command.details, page) + "\n"


class MarkdownPage(Page):
    """A help page in Markdown."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._blocks = [title]

    def paragraph(self, text: str) -> None:
        self._blocks.append(_plain(" ".join(text.split())))

    def usage(self, path: str, rest: str) -> None:
        self._blocks.append(f"```text\n{path} {rest}\n```")

    def lines(self, heading: str, lines: Iterable[str]) -> None:
        listed = "\n".join(lines)
        self._blocks.append(f"## {heading.rstrip(':')}\n\n```sh\n{listed}\n```")

    def entries(self, heading: str, entries: Sequence[Entry], widest: int = 0, *, one_line: bool = False) -> None:
        rows = [
            f"| `{_cell(f'{names} {metavar}'.strip())}` | {_cell(_plain(text))} |" for names, metavar, text in entries
        ]
        table = "\n".join(
            [f"| {heading.rstrip('s:') if heading == 'Arguments:' else 'Option'} | Meaning |", "| :--- | :--- |", *rows]
        )
        self._blocks.append(f"## {heading.rstrip(':')}\n\n{table}")


def _checks_page() -> str:
    from hookcli.checks.selection import known_checks
    from hookcli.commands.explain import advice, settings

    parts = [
        "# All checks",
        "Generated from the checks themselves; `hookcli explain HK010` prints one.",
        "How to run and configure them: [](../checks.md).",
    ]
    for check in known_checks():
        first, *conditions = _plain(check.explanation()).split("\n\n")
        parts += [f"({check.id})=\n## {check.id} {check.name}", first]
        parts += [_titled([("Severity", check.severity), *advice(check)]), *conditions, _titled(settings(check))]
    return "\n\n".join(filter(None, parts)) + "\n"


def _titled(texts: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- **{title}**: {_plain(text)}" for title, text in texts)


def _api_page() -> str:
    parts = ["# Python API in full", "Generated from docstrings. An introduction with examples: [](../python.md)."]
    for heading, names in API.items():
        parts.append(f"## {heading}")
        parts += [f"```{{eval-rst}}\n{_directive(name)}\n```" for name in names]
    return "\n\n".join(parts) + "\n"


def _directive(name: str) -> str:
    from pydoc import locate

    found = locate(name)
    if isinstance(found, type):
        inherited = "\n   :inherited-members:" * name.startswith("hookcli.reporters.")
        return f".. autoclass:: {name}\n   :members:{inherited}"
    if found is None:
        raise LookupError(name)
    return f".. autofunction:: {name}"


def _plain(text: str) -> str:
    """Text as Markdown that shows it as it is, but for code in backticks."""
    parts = text.split("`")
    for number in range(0, len(parts), 2):
        for sign in "\\*_[]<>{}#$|":
            parts[number] = parts[number].replace(sign, f"\\{sign}")
    return "`".join(parts)


def _cell(text: str) -> str:
    return text.replace("\\|", "|").replace("|", "\\|").replace("\n", " ")
