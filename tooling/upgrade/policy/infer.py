"""Infer what to watch in a repository that does not say: what it declares and imports."""

from __future__ import annotations

import re
from collections import Counter
from importlib import metadata
from typing import TYPE_CHECKING

from tooling.cli.toml import TOMLError, parse_toml
from tooling.upgrade.declarations.declaration import DeclarationKind, normalised
from tooling.upgrade.declarations.find import repository_files
from tooling.upgrade.policy.watched import FocusedPackage, Tier, Variant, VersionScope

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tooling.upgrade.declarations.declaration import Declarations


_KNOWN: dict[str, tuple[str, ...]] = {
    "attrs": ("attr", "attrs"),
    "beautifulsoup4": ("bs4",),
    "faiss-cpu": ("faiss",),
    "flash-linear-attention": ("fla",),
    "gitpython": ("git",),
    "hydra-core": ("hydra",),
    "megatron-bridge": ("megatron.bridge",),
    "megatron-core": ("megatron.core",),
    "nvidia-ml-py": ("pynvml",),
    "opencv-python": ("cv2",),
    "opencv-python-headless": ("cv2",),
    "openai-agents": ("agents",),
    "pillow": ("PIL",),
    "protobuf": ("google.protobuf",),
    "pyjwt": ("jwt",),
    "python-dateutil": ("dateutil",),
    "python-dotenv": ("dotenv",),
    "pyyaml": ("yaml",),
    "pyzmq": ("zmq",),
    "sglang-router": ("sglang_router",),
    "scikit-learn": ("sklearn",),
    "tensorboardx": ("tensorboardX",),
}
_TOP = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:/|\.py$|\.[\w-]+\.(?:so|pyd)$)")


def import_names(distribution: str, root: Path | None = None) -> tuple[str, ...]:
    """Import names of a distribution. root: a repository whose `.venv` is asked first."""
    if distribution in _KNOWN:
        return _KNOWN[distribution]
    for folders in _environments(root):
        found = _installed(distribution, folders)
        if found:
            return found
    return (distribution.replace("-", "_").replace(".", "_"),)


def _environments(root: Path | None) -> Iterable[list[str] | None]:
    if root is not None:
        libraries = [*root.glob(".venv/lib/python*/site-packages"), *root.glob(".venv/Lib/site-packages")]
        yield [str(folder) for folder in libraries if folder.is_dir()]
    yield None


def _installed(distribution: str, folders: list[str] | None) -> tuple[str, ...]:
    if folders == []:
        return ()
    try:
        context = {"name": distribution} if folders is None else {"name": distribution, "path": folders}
        found = next(iter(metadata.distributions(**context)), None)
        if found is None:
            return ()
        listed = (found.read_text("top_level.txt") or "").split()
        names = listed or [
            hit["name"] for file in found.files or () if (hit := _TOP.match(str(file).replace("\\", "/")))
        ]
    except (OSError, ValueError):  # a damaged installation says nothing
        return ()
    return tuple(sorted({name for name in names if name.isidentifier() and not _is_strange(name)}))


def _is_strange(name: str) -> bool:
    return name in {"test", "tests", "docs", "examples", "benchmarks"} or name.startswith("__editable__")


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
    """Return the declared distributions that the code imports, those that more files import first in tier."""
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
    """Return the project's own distribution, which its extras may name."""
    try:
        project = parse_toml((root / "pyproject.toml").read_bytes()).get("project", {})
    except (OSError, *TOMLError):
        return ""
    name = project.get("name", "") if isinstance(project, dict) else ""
    return normalised(name) if isinstance(name, str) else ""


def _scope(
    distribution: str, declarations: Declarations, variants: tuple[Variant, ...]
) -> tuple[VersionScope, tuple[str, ...]]:
    """Infer the scope from what the variants' own manifests say."""
    said: dict[str, set[str]] = {}
    for variant in variants:
        written = {
            f"{each.specifier};{each.marker}"
            for each in declarations.of(distribution)
            if each.path in variant.manifests and each.kind is not DeclarationKind.BUILD
        }
        if written:
            said[variant.name] = written
    if len(variants) > 1 and 0 < len(said) < len(variants):
        return VersionScope.VARIANT_ONLY, tuple(said)
    if len({frozenset(each) for each in said.values()}) > 1:
        return VersionScope.DIVERGENT, ()
    return VersionScope.SHARED, ()


def imported_names(root: Path) -> Counter[str]:
    """Dotted names and all their beginnings, with the number of Python files that import them. By pattern: a name in a
    string that looks like an import counts too, which does no harm here."""
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
