"""Capabilities that go beyond looking at one run, a folder each. No code outside a folder imports it."""
