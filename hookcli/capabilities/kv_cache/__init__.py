"""The memory that generation needs: the cache of keys and values of a model of Transformers, layer by layer."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="kv-cache",
    page="questions/generation.md",
    after="memory shapes",  # another word
    order=3,
    summary="Show the memory of a text generator's cache, and what fits.",
    command="hookcli.capabilities.kv_cache.command",
    columns="hookcli.capabilities.kv_cache.columns:DECLARED",
    layout="hookcli.capabilities.kv_cache.layout:CACHE",
    reports=("generation-fits",),
    shortens=True,
)
