"""Runs a model in several processes: torchrun's launcher, a group where no rank waits in vain, one report for all."""
