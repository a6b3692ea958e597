"""Checks judge reports: one check per fault, known by its id (HK001 ...), from hookcli or another distribution."""
