"""What hookcli does beyond looking at one run, one folder per capability. No code outside a folder imports it."""
