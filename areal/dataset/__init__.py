"""Rows to train and evaluate on: loaders by name (`registry`), reading, checks, encoding. Import the submodules."""
