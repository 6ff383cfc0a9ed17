"""areal: asynchronous RL post-training for language models.

Importing this package is cheap and has no side effects: torch, transformers and the registries load when they are used.
Start at `areal.api` (the contracts), then read one folder at a time; the dependency direction is in AGENTS.md.
"""

__version__ = "0.1.0"
