"""Changing a repository: a plan as a value, its views, and the transaction that applies it or rolls it back."""
