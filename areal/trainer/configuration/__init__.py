"""From a YAML file and `key=value` to a checked run configuration, and what can be said about it without starting it.

Torch-free. Read in this order: source (load, provenance), document (YAML with line numbers), schema and problems (what
is wrong, and what was meant), report with memory and render (the dry run), reference (the generated page), registries.
"""
