"""What tests of workflows, rewards and datasets need, in this repository and in others: real engines that are tiny, and
checks of trajectories. Nothing of the framework imports it, and nothing here stands in for the real thing.
"""
