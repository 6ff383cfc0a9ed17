"""Read `[tool.areal.upgrade]` of a repository's pyproject.toml.

    [tool.areal.upgrade]
    exclude = ["examples"]                       # declarations there are not the project's

    [tool.areal.upgrade.packages.vllm]
    tier = "primary"                             # or "secondary"
    imports = ["vllm"]                           # default: found out
    repository = "vllm-project/vllm"
    tag = "v{version}"
    scope = "shared"                             # or "variant-only" (with variants = [...]), "divergent"
    range = "keep"                               # or "raise": a range's lower bound follows the version

    [tool.areal.upgrade.variants.default]
    manifests = ["pyproject.toml"]
    lock = "uv.lock"
    extras = ["dev"]

    [[tool.areal.upgrade.families]]
    packages = ["torch", "torchao"]
    why = "torchao is built against one torch"

    [[tool.areal.upgrade.places]]
    package = "sglang"
    file = "Dockerfile"
    pattern = "lmsysorg/sglang:v{version}-runtime"

Everything may be left out: what is not said is inferred (`tooling.upgrade.policy.read`). An environment that a script
makes for itself is a variant too, named after its folder (".venv-vllm" is "vllm"); nothing has to be written for it.
"""

from __future__ import annotations

import re
from collections import Counter
from importlib import metadata
from pathlib import Path  # noqa: TC003 - pydantic evaluates annotations of this module
from typing import TYPE_CHECKING, Annotated, Final

from packaging.utils import canonicalize_name
from pydantic import AfterValidator, BeforeValidator, Field

from tooling.cli.errors import UsageError
from tooling.cli.settings import Settings, Strings, Text, read_settings, section
from tooling.cli.suggest import did_you_mean
from tooling.kit.change.plan import safe_path
from tooling.python.symbols.text_search import imports_in
from tooling.upgrade.declarations.commands import script_environments
from tooling.upgrade.declarations.declaration import DeclarationKind
from tooling.upgrade.declarations.find import find_declarations, project_name, repository_files
from tooling.upgrade.policy.watched import (
    Family,
    FocusedPackage,
    FollowingPlace,
    RangeRule,
    Tier,
    UpgradePolicy,
    Variant,
    VersionScope,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    environments: list[list[str] | None] = [None]
    if root is not None:
        libraries = [*root.glob(".venv/lib/python*/site-packages"), *root.glob(".venv/Lib/site-packages")]
        environments.insert(0, [str(folder) for folder in libraries if folder.is_dir()])
    for folders in environments:
        found = _installed(distribution, folders)
        if found:
            return found
    return (distribution.replace("-", "_").replace(".", "_"),)


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
    own = {name for name in names if name.isidentifier() and not name.startswith("__editable__")}
    return tuple(sorted(own - {"test", "tests", "docs", "examples", "benchmarks"}))


_LIMIT = 2_000_000
_TWIN = re.compile(r"pyproject[.-](?P<name>[\w-]+)\.toml$")


def infer_variants(declarations: Declarations, root: Path) -> tuple[Variant, ...]:
    """One for the top-level manifest, and one for each twin (pyproject.vllm.toml) beside it."""
    twins = sorted(path for path in declarations.files if "/" not in path and _TWIN.match(path))
    order = ("pyproject.toml", "setup.cfg", "setup.py", "requirements.txt")
    top = [path for path in order if path in declarations.files]
    found = [Variant(name="default", manifests=tuple(top) or ("pyproject.toml",), lock=_lock(root, ""))]
    for path in twins:
        hit = _TWIN.match(path)
        name = hit["name"] if hit else path
        found.append(Variant(name=name, manifests=(path,), lock=_lock(root, name)))
    return tuple(found)


SCRIPT_PLATFORM: Final = "x86_64-manylinux_2_35"
"""What environments of scripts are resolved for: they hold servers, whose wheels need a recent glibc."""


def infer_environments(declarations: Declarations, taken: Sequence[Variant], root: Path) -> tuple[Variant, ...]:
    """One for each environment that a script makes for itself, unless a variant claims the script already."""
    found: list[Variant] = []
    for path in declarations.files:
        if not path.endswith(".sh") or any(path in variant.manifests for variant in taken):
            continue
        for environment in script_environments((root / path).read_text(encoding="utf-8")):
            names = {variant.name for variant in (*taken, *found)}
            stem = path.rpartition("/")[2].removesuffix(".sh")
            name = next((each for each in (environment.name, stem, path) if each not in names), path)
            found.append(
                Variant(name=name, manifests=(path,), platform=SCRIPT_PLATFORM, folder=environment.folder),
            )
    return tuple(found)


def _lock(root: Path, variant: str) -> str:
    names = [f"uv.{variant}.lock"] if variant else ["uv.lock", "pylock.toml", "poetry.lock", "pdm.lock"]
    return next((name for name in names if (root / name).is_file()), "")


def infer_packages(declarations: Declarations, variants: tuple[Variant, ...], root: Path) -> tuple[FocusedPackage, ...]:
    """Return the declared distributions that the code imports, those that more files import first in tier."""
    imported = imported_names(root)
    found: list[FocusedPackage] = []
    own = project_name(root)  # its extras may name it
    for distribution in sorted({each.distribution for each in declarations.found} - {own}):
        names = import_names(distribution, root)
        files = max((imported[name] for name in names), default=0)
        if files:
            # What the variants' own manifests say
            scope: VersionScope = "shared"
            chosen: tuple[str, ...] = ()
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
                scope, chosen = "variant-only", tuple(said)
            elif len({frozenset(each) for each in said.values()}) > 1:
                scope = "divergent"
            tier: Tier = "primary" if files > 1 else "secondary"
            found.append(
                FocusedPackage(distribution=distribution, imports=names, tier=tier, scope=scope, variants=chosen)
            )
    return tuple(found)


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
        for level, module, _ in imports_in(content):
            parts = [] if level else module.split(".")
            names.update(".".join(parts[: index + 1]) for index in range(len(parts)))
        counts.update(names)
    return counts


def _rows(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


_Path = Annotated[Text, AfterValidator(safe_path)]
_Names = Annotated[Strings, AfterValidator(lambda names: tuple(map(canonicalize_name, names)))]
_Paths = Annotated[tuple[_Path, ...], BeforeValidator(_rows)]


class _PackageSettings(Settings):
    imports: Strings = ()
    tier: Tier = "primary"
    repository: str = ""
    tag: str = "v{version}"
    scope: VersionScope = "shared"
    variants: Strings = ()
    range: RangeRule = "keep"


class _VariantSettings(Settings):
    manifests: _Paths
    lock: _Path = ""
    extras: Strings = ()
    groups: Strings = ()
    python: str = ""
    platform: str = ""


class _FamilySettings(Settings):
    packages: _Names
    why: str = ""


class _PlaceSettings(Settings):
    package: Annotated[Text, AfterValidator(canonicalize_name)]
    file: _Path
    pattern: Text


class _UpgradeSettings(Settings):
    exclude: _Paths = ()
    packages: dict[str, _PackageSettings] = Field(default_factory=dict)
    variants: dict[str, _VariantSettings] = Field(default_factory=dict)
    families: Annotated[tuple[_FamilySettings, ...], BeforeValidator(_rows)] = ()
    places: Annotated[tuple[_PlaceSettings, ...], BeforeValidator(_rows)] = ()


def read_policy(root: Path, declarations: Declarations | None = None) -> UpgradePolicy:
    """Return the policy of the repository at `root`. declarations: its own, where the caller has them.

    Raises UsageError that names the setting for unknown or wrong ones, and for a damaged pyproject.toml.
    """
    settings = read_settings(_UpgradeSettings, root, "upgrade")
    if declarations is None:
        declarations = find_declarations(root)
    for name, table in settings.variants.items():
        if not table.manifests:
            fix = 'add manifests = ["pyproject.toml"]'
            raise UsageError("names no manifests", where=section("upgrade", "variants", name), fix=fix)
    variants = tuple(Variant(name=name, **dict(table)) for name, table in settings.variants.items())
    variants = variants or infer_variants(declarations, root)
    environments = infer_environments(declarations, variants, root)
    if "packages" in settings.model_fields_set:
        packages = _packages(settings, (*variants, *environments), declarations, root)
    else:
        packages = infer_packages(declarations, variants, root)
    variants += environments
    for index, family in enumerate(settings.families):
        if len(family.packages) < 2:
            fix = "list the packages that move together"
            raise UsageError("has fewer than two packages", where=section("upgrade", "families", str(index)), fix=fix)
    for index, place in enumerate(settings.places):
        if place.pattern.count("{version}") != 1:
            message = f"`pattern` is {place.pattern!r}, expected {{version}} once"
            fix = "write {version} where the version is"
            raise UsageError(message, where=section("upgrade", "places", str(index)), fix=fix)
    return UpgradePolicy(
        packages=packages,
        variants=variants,
        families=tuple(Family(**dict(each)) for each in settings.families),
        followers=tuple(FollowingPlace(**dict(each)) for each in settings.places),
        exclude=settings.exclude,
        inferred=not settings.model_fields_set,
    )


def _packages(
    settings: _UpgradeSettings, variants: tuple[Variant, ...], declarations: Declarations, root: Path
) -> tuple[FocusedPackage, ...]:
    known = [each.name for each in variants]
    found = []
    for name, table in settings.packages.items():
        for variant in table.variants:
            if variant not in known:
                fix = did_you_mean(variant, known) or f"known: {', '.join(known) or 'none'}"
                where = section("upgrade", "packages", name)
                raise UsageError(f"`variants` names {variant!r}, which is not a variant", where=where, fix=fix)
        distribution = canonicalize_name(name)
        own = dict(table) | {"imports": table.imports or import_names(distribution, root)}
        found.append(FocusedPackage(distribution=distribution, declared=bool(declarations.of(distribution)), **own))
    return tuple(sorted(found, key=lambda each: each.distribution))
