"""What a repository watches: packages, variants, families, places that follow a version. Where it does not say, that is
inferred from what it declares and imports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from packaging.utils import canonicalize_name
from pydantic import AfterValidator, BeforeValidator

from tooling.cli.settings import Settings, Text
from tooling.kit.change.plan import safe_path
from tooling.upgrade.declarations.commands import script_environments
from tooling.upgrade.declarations.declaration import DeclarationKind
from tooling.upgrade.declarations.find import project_name
from tooling.upgrade.policy.import_names import import_names
from tooling.upgrade.usage.checkout import Checkout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.upgrade.declarations.declaration import Declarations


VersionScope = Literal["shared", "variant-only", "divergent"]
"""All variants have one version; only some have the package; each has its own, so that a request must name one."""
RangeRule = Literal["keep", "raise"]
"""What happens to a range that allows the new version already. "raise": its lower bound becomes the new version, for
packages whose range is the only record of what was audited."""


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Rows = BeforeValidator(_listed)
"""A TOML array."""
Distribution = Annotated[Text, AfterValidator(canonicalize_name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FocusedPackage:
    """A package that is watched."""

    distribution: str
    imports: tuple[str, ...]
    """Import names, dotted where a namespace is shared: ("megatron.core",)."""
    repository: str = ""
    """ "vllm-project/vllm"."""
    tag: str = "v{version}"
    """Of a version in that repository."""
    scope: VersionScope = "shared"
    variants: tuple[str, ...] = ()
    """Of a variant-only package: which have it."""
    range: RangeRule = "keep"
    declared: bool = True
    """False if it is watched, and no manifest names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One environment, resolved on its own: a way to install the project, or what a script installs beside it."""

    name: str
    manifests: tuple[str, ...]
    """The first is the project's manifest; others are what is declared for this variant only."""
    lock: str = ""
    """uv.lock, or a file of pins (constraints.txt); "" if nothing is locked."""
    extras: tuple[str, ...] = ()
    """Extras that are installed; () for all of them where the lock is uv's."""
    groups: tuple[str, ...] = ()
    python: str = ""
    """Python version to resolve for; "" for the project's lowest."""
    platform: str = ""
    """As uv names it ("linux"); "" for all."""
    folder: str = ""
    """Of an environment that a script (the only manifest) makes for itself: ".venv-vllm"; "" for the project's."""


class Family(Settings):
    """Packages whose versions move together."""

    packages: Annotated[tuple[Distribution, ...], Rows]
    why: str = ""


class FollowingPlace(Settings):
    """A place that follows a version and is found by text."""

    package: Distribution
    file: Annotated[Text, AfterValidator(safe_path)]
    pattern: Text
    """Text with {version} in it: "lmsysorg/sglang:v{version}-runtime"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradePolicy:
    """All of it."""

    packages: tuple[FocusedPackage, ...]
    variants: tuple[Variant, ...]
    families: tuple[Family, ...] = ()
    followers: tuple[FollowingPlace, ...] = ()
    exclude: tuple[str, ...] = ()
    """Folders and files whose declarations are not the project's."""
    inferred: bool = False
    """Whether the repository has no table of its own."""

    def package(self, distribution: str) -> FocusedPackage | None:
        """Return a watched package by its normalised name."""
        return next((each for each in self.packages if each.distribution == distribution), None)

    def family(self, distribution: str) -> tuple[Family, ...]:
        """Return the families a package belongs to."""
        return tuple(each for each in self.families if distribution in each.packages)

    def variants_of(self, path: str) -> tuple[str, ...]:
        """Names of the variants that a manifest belongs to: all of them for a file that none claims."""
        owners = tuple(each.name for each in self.variants if path in each.manifests or path == each.lock)
        return owners or tuple(each.name for each in self.variants)


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
    """Return the declared distributions that the code imports."""
    imported = imported_names(root)
    found: list[FocusedPackage] = []
    own = project_name(root)  # its extras may name it
    for distribution in sorted({each.distribution for each in declarations.found if not each.build_of} - {own}):
        names = import_names(distribution, root)
        if not imported.isdisjoint(names):
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
            found.append(FocusedPackage(distribution=distribution, imports=names, scope=scope, variants=chosen))
    return tuple(found)


def imported_names(root: Path) -> set[str]:
    """Dotted names that Python files import, and all their beginnings. By pattern: what looks like one in a string
    counts too, which does no harm here."""
    checkout = Checkout(root)
    found = {module for path in checkout.paths for level, module, _ in checkout.imports(path) if not level}
    return {".".join(parts[:end]) for parts in (each.split(".") for each in found) for end in range(1, len(parts) + 1)}
