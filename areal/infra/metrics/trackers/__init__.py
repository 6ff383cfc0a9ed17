"""Copies of a run's numbers and samples in experiment trackers: one module per client, one table, one guard around all.

`config` says what may be asked for, `registry` where each client's module is, `tracking` what all share.
"""
