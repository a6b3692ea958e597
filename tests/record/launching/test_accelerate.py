"""`hookcli run accelerate launch`: two ranks that end with the same bits as without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from record.launching.support import ENV

ACCELERATE = """
    import sys, torch
    from accelerate import Accelerator
    from torch import nn

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.utils.data.DataLoader(torch.randn(16, 4, generator=torch.Generator().manual_seed(1)), batch_size=2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for x in data:
        optimizer.zero_grad()
        accelerator.backward(model(x).square().mean())
        optimizer.step()
    found = [*(p.detach() for p in model.parameters()), torch.get_rng_state()]
    torch.save(found, f"{sys.argv[1]}-{accelerator.process_index}.pt")
    """


@pytest.mark.sweep
def test_accelerate_launch_on_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(dedent(ACCELERATE))
    launch = ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1")
    command = (*launch, "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0", "train.py")
    environment = ENV | {"ACCELERATE_USE_CPU": "true"}
    for name, prefix in (("plain", ()), ("seen", (sys.executable, "-m", "hookcli", "run", "--every", "1"))):
        subprocess.run((*prefix, *command, name), cwd=tmp_path, env=environment, check=True, timeout=240)
    assert sorted(path.name for path in (tmp_path / "train.run").glob("*.jsonl")) == ["rank0.jsonl", "rank1.jsonl"]
    for rank in range(2):
        plain, seen = (torch.load(tmp_path / f"{name}-{rank}.pt") for name in ("plain", "seen"))
        assert len(plain) == 5 and all(map(torch.equal, plain, seen))
