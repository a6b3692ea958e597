"""Models in packages of torch.package: what becomes of each module, and a source that loads them."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="package",
    page="models.md",
    question="Anything else?",
    after="show",
    summary="Export a model with torch.package; show what becomes of modules.",
    command="hookcli.capabilities.package.command",
    source="hookcli.capabilities.package.source:PackageSource",
    hooks={f"package {kind}": "package" for kind in ("extern", "intern", "mock")},
    on_one_rank=True,
    writes=True,
)
