"""The process around hookcli: standard streams, files, code loaded by name, torchrun's environment. No torch."""
