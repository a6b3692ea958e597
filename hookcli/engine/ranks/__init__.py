"""A run in several processes: torchrun's launcher, a group that leaves nobody waiting, one report for all."""
