"""What a rank does: run command lines one after another, each with its report in a file.

torchrun ... jobs.py FOLDER, with FOLDER/commands.json: {"name": ["activations", ...], ...}
"""

import json
import sys
from pathlib import Path

import torch

from hookcli.cli import main

folder = Path(sys.argv[1])
torch.set_num_threads(1)
for name, command in json.loads((folder / "commands.json").read_text()).items():
    code = main([*command, "--output", str(folder / f"{name}.json"), "--quiet"])
    assert code == 0, (name, code)
