"""Help tests of workflows, rewards, datasets and process groups, in this repository and in others.

It has real engines that are tiny, checks of trajectories and of model families, and a server that forks processes which
have imported torch. Nothing of the framework imports it.
"""
