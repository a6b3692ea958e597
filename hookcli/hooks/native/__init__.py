"""Hooks on the autograd graph in C++, which run without the GIL. Built on first use; needs a compiler and ninja."""

from __future__ import annotations

from hookcli.hooks.native.timeline import CaptureRecord, GradRecord, LeafRecord, NodeRecord, Timeline

__all__ = ["CaptureRecord", "GradRecord", "LeafRecord", "NodeRecord", "Timeline"]
