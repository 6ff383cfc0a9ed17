"""Changing a repository: a plan as a value, its views, and the transaction that carries it out or takes it back."""
