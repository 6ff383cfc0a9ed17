"""Load and check run configurations (a YAML file and `key=value`), and report on them without starting a run.

Torch-free. Read in this order: source (load, provenance), document (YAML with line numbers), schema and problems (what
is wrong, and what was meant), report with memory and render (the dry run), reference (the generated page), registries.
"""
