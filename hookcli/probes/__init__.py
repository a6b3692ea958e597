"""What can be looked at: a probe asks a hook session for hooks and turns what they see into a report."""
