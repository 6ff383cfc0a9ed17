"""Proof that many processes compute what one computes: the same steps, under every way of splitting, compared.

`python -m areal.engine.archon.equality` starts the processes and prints the table; tests run the same cases.
"""
