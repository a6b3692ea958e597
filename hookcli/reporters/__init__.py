"""How a report is written: each reporter turns reports into text."""
