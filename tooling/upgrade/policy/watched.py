"""Hold what a repository watches: packages, variants, families, places that follow a version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tier = Literal["primary", "secondary"]
VersionScope = Literal["shared", "variant-only", "divergent"]
"""All variants have one version; only some have the package; each has its own, so that a request must name one."""
RangeRule = Literal["keep", "raise"]
"""What happens to a range that allows the new version already. "raise": its lower bound becomes the new version, for
packages whose range is the only record of what was audited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FocusedPackage:
    """A package that is watched."""

    distribution: str
    imports: tuple[str, ...]
    """Import names, dotted where a namespace is shared: ("megatron.core",)."""
    tier: Tier = "primary"
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


@dataclass(frozen=True, slots=True)
class Family:
    """Packages whose versions move together."""

    packages: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class FollowingPlace:
    """A place that follows a version and is found by text."""

    package: str
    file: str
    pattern: str
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
