"""What judges a report. Checks come from other distributions (entry points `hookcli.checks`); none is built in yet."""
