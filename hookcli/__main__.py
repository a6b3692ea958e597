"""`python -m hookcli`, and `torchrun -m hookcli`."""

from hookcli.cli import entry

entry()
