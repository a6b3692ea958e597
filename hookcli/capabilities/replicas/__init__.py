"""Tells whether ranks that should hold the same weights still do, from checksums in each rank's record."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="replicas",
    page="questions/blame.md",
    recorder="hookcli.capabilities.replicas.recorder:Recorder",
    headline="hookcli.capabilities.replicas.differing:apart",
    headline_place=-1,
    remark_on_ranks="hookcli.capabilities.replicas.differing:on_their_own",
    checks={"HK052": "hookcli.capabilities.replicas.checks:ReplicasDiffer"},
)
