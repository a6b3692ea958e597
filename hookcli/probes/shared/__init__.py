"""Building blocks that several probes share; no file here is a probe."""
