from __future__ import annotations

import pytest
from torch.autograd import graph


@pytest.fixture(params=["as nodes are made", "by a search"])
def found(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the nodes are found that a module makes: by PyTorch's hook (2.15), or below its outputs."""
    if request.param == "by a search":
        monkeypatch.delattr(graph, "node_creation_hook", raising=False)
    elif not hasattr(graph, "node_creation_hook"):
        pytest.skip("PyTorch has this hook since 2.15")
    return str(request.param)
