"""The arguments of a call, as a dump keeps them: what is plain in JSON, tensors beside it."""

from __future__ import annotations

import json

import torch
from support import equal
from torch import Tensor

from hookcli.tensors.files.dump_reader import decoded_call, encoded_call


def test_a_call_comes_back_with_its_keywords_and_its_target() -> None:
    x, mask, target = torch.randn(2, 3), torch.ones(2, dtype=torch.bool), {"labels": torch.arange(2)}
    tensors: dict[str, Tensor] = {}
    call = encoded_call((x, 3), {"mask": mask, "scale": [0.5, None]}, target, tensors)
    assert len(tensors) == 3
    found = decoded_call(json.loads(json.dumps(call)), tensors)
    assert equal(found, ((x, 3), {"mask": mask, "scale": [0.5, None]}, target))
