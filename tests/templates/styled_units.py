"""Units of a kind whose templates have styles: generated in memory, and what holds for all of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tooling.kit.names import Names
from tooling.kit.template.kinds import ProjectSettings
from tooling.kit.template.manifest import load_manifest, resolve
from tooling.kit.template.rendering import check_files, complete_answers, format_files, render, template_context

ROOT = Path(__file__).resolve().parents[2]


def generated(kind, name, package="areal", root=ROOT, **answers):
    """The formatted files of a unit, and what its manifest says about them."""
    template, parts = ROOT / "templates" / kind, name.split("_")
    pascal = "".join(part[:1].upper() + part[1:] for part in parts)
    names = Names(name, name, pascal, name.upper(), "-".join(parts), name, " ".join(parts))
    settings = ProjectSettings(package=package)
    complete = complete_answers(template, answers, names, settings)
    files = render(template, complete, names, settings)
    context = {**template_context(names, settings, kind), **complete}
    return format_files(root, files), resolve(load_manifest(template), context, files)


def module_of(kind, name, answers):
    """The source of a unit's module."""
    files, _ = generated(kind, name, **answers)
    return next(content.decode() for path, content in files.items() if not path.startswith("tests/"))


def assert_passes_the_gates(kind, name, answers):
    """A module and its test, which pass, and are the same each time."""
    files, manifest = generated(kind, name, **answers)
    assert sorted(files) == [f"areal/{kind}/{name}.py", f"tests/areal/{kind}/test_{name}.py"]
    assert [result.name for result in check_files(ROOT, files) if not result.ok] == []
    assert [entry.path for entry in manifest.files if entry.test] == [f"tests/areal/{kind}/test_{name}.py"]
    assert generated(kind, name, **answers)[0] == files


def assert_fits_elsewhere(kind, name, package, folder, **answers):
    """A unit of another package, with a long name, passes the gates too."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    place = folder
    for part in (*package.split("."), kind):
        place /= part
        place.mkdir()
        (place / "__init__.py").touch()
    files, manifest = generated(kind, name, package, folder, **answers)
    assert [result.detail for result in check_files(folder, files) if not result.ok] == []
    assert manifest.registry[0].value.startswith(f"{package}.{kind}.{name}:ARatherLong")
