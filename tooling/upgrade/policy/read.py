"""Read `[tool.areal.upgrade]` of a repository's pyproject.toml.

    [tool.areal.upgrade]
    exclude = ["examples"]                       # declarations there are not the project's

    [tool.areal.upgrade.packages.vllm]
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

Everything may be left out: what is not said is inferred (`tooling.upgrade.policy.watched`). An environment that a
script makes for itself is a variant too, named after its folder (".venv-vllm" is "vllm"); nothing has to be written.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic evaluates annotations of this module
from typing import TYPE_CHECKING, Annotated

from packaging.utils import canonicalize_name
from pydantic import AfterValidator, Field

from tooling.cli.errors import UsageError
from tooling.cli.settings import Settings, Strings, Text, read_settings, section
from tooling.cli.suggest import did_you_mean
from tooling.kit.change.plan import safe_path
from tooling.upgrade.declarations.find import find_declarations
from tooling.upgrade.policy.import_names import import_names
from tooling.upgrade.policy.watched import (
    Family,
    FocusedPackage,
    FollowingPlace,
    RangeRule,
    Rows,
    UpgradePolicy,
    Variant,
    VersionScope,
    infer_environments,
    infer_packages,
    infer_variants,
)

if TYPE_CHECKING:
    from tooling.upgrade.declarations.declaration import Declarations


_Path = Annotated[Text, AfterValidator(safe_path)]
_Paths = Annotated[tuple[_Path, ...], Rows]


class _PackageSettings(Settings):
    imports: Strings = ()
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


class _UpgradeSettings(Settings):
    exclude: _Paths = ()
    packages: dict[str, _PackageSettings] = Field(default_factory=dict)
    variants: dict[str, _VariantSettings] = Field(default_factory=dict)
    families: Annotated[tuple[Family, ...], Rows] = ()
    places: Annotated[tuple[FollowingPlace, ...], Rows] = ()


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
        families=settings.families,
        followers=settings.places,
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
