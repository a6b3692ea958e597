"""The Typer app. It knows the names of the commands; the module of one is imported when that command is used."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from hookcli import registry
from hookcli.commands import COMMANDS, MODULES
from hookcli.commands.help_pages import Details, commands_page
from hookcli.commands.typer_classes import TYPED, Helpful, HelpfulCommand, asks_for_all
from hookcli.errors import UsageError
from hookcli.registry.capability import hint
from hookcli.system.stdout import stdout_kept, write_report

HELP = "See what happens inside a PyTorch model or an unmodified training script."
_CONTEXT = {"help_option_names": ["-h", "--help"]}


def build_app() -> typer.Typer:
    """The app with all commands: the built-in ones, and probes of other distributions by their names."""
    app = typer.Typer(
        cls=_AllCommands,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings=_CONTEXT,
    )
    app.callback(invoke_without_command=True)(_first)
    return app


class _AllCommands(Helpful, TyperGroup):
    """The group of all commands, which makes one when it is looked up."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _LazyCommands()

    def list_commands(self, ctx: object) -> list[str]:
        return list(COMMANDS)

    def get_help(self, ctx: Any) -> str:
        return commands_page(HELP, whole=asks_for_all(ctx.meta.get(TYPED, ())))


class _LazyCommands(Mapping[str, object]):
    """Commands by name. Probes of other distributions are looked up, which takes time, for names that are not ours."""

    def __init__(self) -> None:
        self._made: dict[str, object] = {}

    def __getitem__(self, name: str) -> object:
        if name not in self._made:
            if name not in COMMANDS and name not in registry.names("probes"):
                raise KeyError(name)
            self._made[name] = _command(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*COMMANDS, *registry.names("probes"))))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _command(name: str) -> object:
    """A command of hookcli, or of a probe from another distribution."""
    from hookcli.commands.option_fields import instead_of, seldom_used, takes_options

    if MODULES.get(name):
        module = import_module(MODULES[name])
        function = getattr(module, name.replace("-", "_"))
        parts = ("COLUMNS", "FIRST", "ELSEWHERE")
        declared = {part.lower(): getattr(module, part) for part in parts if hasattr(module, part)}
        details = Details(module.EXAMPLES, example=getattr(module, "example", None), **declared)
        text, settings = inspect.getdoc(function), getattr(module, "SETTINGS", None)
    else:
        from hookcli.commands.probe_command import probe_command

        function, details, settings = probe_command(name), Details((f"hookcli {name} resnet50",)), None
        summary = COMMANDS.get(name, "")
        origin = f"The probe {name}, from {registry.find('probes', name).distribution}."
        text = "\n\n".join(filter(None, [summary, origin]))
    text = "\n\n".join(filter(None, [text, hint(f"help of {name}")]))
    details = replace(details, seldom=seldom_used(function), instead=instead_of(function))
    function = takes_options(function)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    function = function if name == "run" else stdout_kept()(function)  # the stdout of `run` is the script's
    app.command(name, help=text, cls=HelpfulCommand, context_settings=settings)(function)
    made: Any = typer.main.get_command(app)
    made.details = details
    return made


def _first(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Show the version."),
    verbose: bool = typer.Option(
        False, "--verbose", help="With --version: also show which code takes statistics here."
    ),
) -> None:
    """Show the version, which needs no command."""
    if verbose and not version:
        raise UsageError("--verbose goes with --version: hookcli --version --verbose")
    if version:
        write_report(_version(verbose=verbose))
        raise typer.Exit
    if context.invoked_subcommand is None:
        context.fail("Missing command.")


def _version(*, verbose: bool) -> str:
    """The version; if `verbose`, also the versions of Python and torch, and the code that takes statistics."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    lines = [f"hookcli {version('hookcli')}"]
    if verbose:
        import torch

        from hookcli.tensors import library

        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        accelerator = f"{torch.accelerator.device_count()} {device.type}" if device else "none"
        kernels = "PyTorch's operators (Triton is not installed)"
        for name in ("triton", "triton-windows", "pytorch-triton-rocm", "pytorch-triton-xpu"):
            with suppress(PackageNotFoundError):
                kernels = f"kernels of Triton {version(name)}"
                break
        lines += [
            f"Python {platform.python_version()}, {platform.system()} {platform.machine()}",
            f"torch {torch.__version__}, accelerator: {accelerator}",
            f"statistics on the CPU: {library.described()}",
            f"statistics on accelerators: {kernels}",
        ]
    return "\n".join(lines) + "\n"
