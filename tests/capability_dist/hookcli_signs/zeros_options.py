"""The option of `check`."""

from dataclasses import dataclass

from hookcli.commands.option_fields import option


@dataclass(frozen=True)
class ZerosOptions:
    """The limit on zeros."""

    panel = "Checks"

    max_zeros: str | None = option(None, "Limit on zero parameters.", metavar="COUNT", after="max_params")
