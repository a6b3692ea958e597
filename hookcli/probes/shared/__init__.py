"""Parts that several probes are made of; no file here is a probe."""
