"""What to watch in a repository that does not say: what it declares and imports."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from tooling.cli.toml import TOMLError, parse_toml
from tooling.upgrade.declarations.find import repository_files
from tooling.upgrade.declarations.records import Kind
from tooling.upgrade.declarations.requirement_text import normalised
from tooling.upgrade.policy.import_names import import_names
from tooling.upgrade.policy.records import FocusedPackage, Scope, Tier, Variant

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.upgrade.declarations.records import Declarations

_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([A-Za-z_][\w.]*)[ \t]+import|import[ \t]+([A-Za-z_][\w., \t]*))", re.MULTILINE
)
_LIMIT = 2_000_000
_TWIN = re.compile(r"pyproject[.-](?P<name>[\w-]+)\.toml$")


def infer_variants(declarations: Declarations, root: Path) -> tuple[Variant, ...]:
    """One for the top-level manifest, and one for each twin (pyproject.vllm.toml) beside it."""
    twins = sorted(path for path in declarations.files if "/" not in path and _TWIN.match(path))
    found = [Variant(name="default", manifests=_top_manifests(declarations), lock=_lock(root, ""))]
    for path in twins:
        hit = _TWIN.match(path)
        name = hit["name"] if hit else path
        found.append(Variant(name=name, manifests=(path,), lock=_lock(root, name)))
    return tuple(found)


def _top_manifests(declarations: Declarations) -> tuple[str, ...]:
    order = ("pyproject.toml", "setup.cfg", "setup.py", "requirements.txt")
    found = [path for path in order if path in declarations.files]
    return tuple(found) or ("pyproject.toml",)


def _lock(root: Path, variant: str) -> str:
    names = [f"uv.{variant}.lock"] if variant else ["uv.lock", "pylock.toml", "poetry.lock", "pdm.lock"]
    return next((name for name in names if (root / name).is_file()), "")


def infer_packages(declarations: Declarations, variants: tuple[Variant, ...], root: Path) -> tuple[FocusedPackage, ...]:
    """The declared distributions that the code imports, those that more files import first in tier."""
    imported = imported_names(root)
    found: list[FocusedPackage] = []
    for distribution in sorted({each.distribution for each in declarations.found} - {_own_name(root)}):
        names = import_names(distribution, root)
        files = max((imported[name] for name in names), default=0)
        if files:
            scope, chosen = _scope(distribution, declarations, variants)
            tier = Tier.PRIMARY if files > 1 else Tier.SECONDARY
            found.append(
                FocusedPackage(distribution=distribution, imports=names, tier=tier, scope=scope, variants=chosen)
            )
    return tuple(found)


def _own_name(root: Path) -> str:
    """The project's own distribution, which its extras may name."""
    try:
        project = parse_toml((root / "pyproject.toml").read_bytes()).get("project", {})
    except (OSError, *TOMLError):
        return ""
    name = project.get("name", "") if isinstance(project, dict) else ""
    return normalised(name) if isinstance(name, str) else ""


def _scope(
    distribution: str, declarations: Declarations, variants: tuple[Variant, ...]
) -> tuple[Scope, tuple[str, ...]]:
    """Told by what the variants' own manifests say."""
    said: dict[str, set[str]] = {}
    for variant in variants:
        written = {
            f"{each.specifier};{each.marker}"
            for each in declarations.of(distribution)
            if each.path in variant.manifests and each.kind is not Kind.BUILD
        }
        if written:
            said[variant.name] = written
    if len(variants) > 1 and 0 < len(said) < len(variants):
        return Scope.VARIANT_ONLY, tuple(said)
    if len({frozenset(each) for each in said.values()}) > 1:
        return Scope.DIVERGENT, ()
    return Scope.SHARED, ()


def imported_names(root: Path) -> Counter[str]:
    """Dotted names and all their beginnings, with the number of Python files that import them. By pattern: a name in a
    string that looks like an import counts too, which is no harm here."""
    counts: Counter[str] = Counter()
    for path in repository_files(root):
        if not path.endswith(".py"):
            continue
        file = root / path
        try:
            if file.is_symlink() or file.stat().st_size > _LIMIT:
                continue
            content = file.read_bytes()
        except OSError:
            continue
        names: set[str] = set()
        for module, modules in _IMPORT.findall(content):
            for dotted in [module] if module else modules.split(b","):
                parts = dotted.split()[0].decode().split(".") if dotted.split() else []
                names.update(".".join(parts[: index + 1]) for index in range(len(parts)))
        counts.update(names)
    return counts
