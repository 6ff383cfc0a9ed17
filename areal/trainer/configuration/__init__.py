"""Load and check run configurations (a YAML file and `key=value`), and report on them without starting a run.

Torch-free. Read in this order: source (YAML, provenance), schema and problems (what is wrong, and what was
meant), validation (whether it can run), report with memory (the dry run), reference (the generated page).
"""
