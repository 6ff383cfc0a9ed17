"""Rollout workflows, one file each: how a dataset row becomes trajectories. They share `assembly`."""
