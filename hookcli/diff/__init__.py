"""What two runs have in common and where they part, from plain numbers; free of torch."""
