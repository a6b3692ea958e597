"""What judges a report: a check per fault, known by its id (HK001 ...), of hookcli or of other distributions."""
