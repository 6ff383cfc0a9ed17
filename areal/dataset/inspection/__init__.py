"""Looks at a dataset and says what it holds: columns, roles, the kinds of training it fits, and which rows contradict
that. `python -m areal.dataset.inspection PATH --help`; from Python: `areal.dataset.inspection.report.inspect_split`.

Reads local files only and runs nothing that data says.
"""
