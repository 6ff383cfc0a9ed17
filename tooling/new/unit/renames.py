"""Files that a template renamed: which generated file became which, by the `renames` of its manifest.

[renames]
"template/{{ tests }}/{{ snake }}_test.py.jinja" = "template/{{ tests }}/test_{{ snake }}.py.jinja"
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tooling.kit.template.expressions import evaluate
from tooling.kit.template.manifest import load_manifest
from tooling.kit.template.questions import load_configuration
from tooling.kit.template.rendering import template_context

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tooling.kit.project import Settings
    from tooling.kit.receipts import Receipt
    from tooling.new.unit.context import Workspace
    from tooling.new.unit.produce import Produced


def renamed_paths(workspace: Workspace, folder: Path, receipt: Receipt, produced: Produced) -> dict[str, str]:
    """New path -> old path of each generated file whose template file was renamed. A file renamed twice is followed."""
    renames = load_manifest(folder).renames
    if not renames:
        return {}
    configuration = load_configuration(folder)
    prefix = f"{configuration.get('_subdirectory') or ''}/".lstrip("/")
    suffix = str(configuration.get("_templates_suffix") or ".jinja")
    settings = replace(workspace.settings, package=receipt.package, tests=receipt.tests)
    before = _context(receipt, settings, receipt.answers)
    after = _context(receipt, produced.settings, produced.answers)
    found: dict[str, str] = {}
    for old in renames:
        new = _last(renames, old)
        old_path = evaluate(_place(old, prefix, suffix), before, where=f"renames: {old}")
        new_path = evaluate(_place(new, prefix, suffix), after, where=f"renames: {new}")
        if old_path in receipt.files and new_path in produced.files and old_path != new_path:
            found[new_path] = old_path
    return found


def _context(receipt: Receipt, settings: Settings, answers: Mapping[str, Any]) -> dict[str, Any]:
    return {**template_context(receipt.names, settings, receipt.kind), **answers}


def _place(template_file: str, prefix: str, suffix: str) -> str:
    """Where a template file renders to, expressions not evaluated."""
    return template_file.removeprefix(prefix).removesuffix(suffix)


def _last(renames: Mapping[str, str], name: str) -> str:
    """The end of a chain of renames; a circle ends where it began."""
    seen = {name}
    while (following := renames.get(name)) is not None and following not in seen:
        seen.add(following)
        name = following
    return name
