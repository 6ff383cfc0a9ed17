"""`[tool.areal.upgrade]` of a repository's pyproject.toml.

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

Everything may be left out: what is not said is inferred (`tooling.upgrade.policy.infer`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import TOMLError, parse_toml
from tooling.kit.change.plan import safe_path
from tooling.upgrade.declarations.declaration import normalised
from tooling.upgrade.declarations.find import find_declarations
from tooling.upgrade.declarations.toml_text import scan_toml
from tooling.upgrade.policy.infer import import_names, infer_packages, infer_variants
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
    from collections.abc import Mapping
    from pathlib import Path

    from tooling.upgrade.declarations.declaration import Declarations

_TABLE = ("tool", "areal", "upgrade")
_TOP = {"exclude": list, "packages": dict, "variants": dict, "families": list, "places": list}
_PACKAGE = {
    "imports": list,
    "tier": str,
    "repository": str,
    "tag": str,
    "upstream_paths": list,
    "scope": str,
    "variants": list,
    "range": str,
}
_VARIANT = {"manifests": list, "lock": str, "extras": list, "groups": list, "python": str, "platform": str}
_FAMILY = {"packages": list, "why": str}
_PLACE = {"package": str, "file": str, "pattern": str}


def read_policy(root: Path, declarations: Declarations | None = None) -> UpgradePolicy:
    """The policy of the repository at `root`. declarations: those of the repository, where the caller has them.

    Raises UsageError that names key and line for unknown or wrongly typed settings, and for a damaged pyproject.toml.
    """
    text, table = _read(root)
    reader = _PolicyReader(text)
    settings = reader.typed(table, _TABLE, _TOP) if table is not None else {}
    if declarations is None:
        declarations = find_declarations(root)
    variants = reader.variants(settings) or infer_variants(declarations, root)
    packages = reader.packages(settings, variants, declarations, root)
    return UpgradePolicy(
        packages=packages if "packages" in settings else infer_packages(declarations, variants, root),
        variants=variants,
        families=reader.families(settings),
        followers=reader.followers(settings),
        exclude=reader.paths(settings, "exclude", _TABLE),
        inferred=table is None,
    )


def _read(root: Path) -> tuple[str, dict[str, Any] | None]:
    path = root / "pyproject.toml"
    try:
        content = path.read_bytes()
        table: Any = parse_toml(content)
    except FileNotFoundError:
        return "", None
    except (OSError, *TOMLError) as error:
        raise UsageError(f"cannot be read: {error}", where="pyproject.toml", fix="correct the file") from error
    for index, key in enumerate(_TABLE):
        if not isinstance(table, dict):
            name = ".".join(_TABLE[:index])
            raise UsageError(f"`{name}` is no table", where="pyproject.toml", fix=f"write [{name}]")
        if key not in table:
            return content.decode(), None
        table = table[key]
    if not isinstance(table, dict):
        raise UsageError("`tool.areal.upgrade` is no table", where="pyproject.toml", fix="write [tool.areal.upgrade]")
    return content.decode(), table


class _PolicyReader:
    """Typed access; every complaint says where."""

    def __init__(self, text: str) -> None:
        self._places = scan_toml(text) if text else None

    def fail(self, message: str, path: tuple[str | int, ...], fix: str) -> UsageError:
        line = self._places.line(path) if self._places else 0
        key = ".".join(str(part) for part in path)
        return UsageError(f"[{key}] {message}", where=f"pyproject.toml:{line}" if line else "pyproject.toml", fix=fix)

    def typed(self, table: Any, path: tuple[str | int, ...], known: Mapping[str, type]) -> dict[str, Any]:
        """The table, if all its keys are known and of their types."""
        if not isinstance(table, dict):
            raise self.fail("is no table", path, "write it as a table")
        for key, value in table.items():
            if key not in known:
                fix = did_you_mean(key, known) or f"known settings: {', '.join(known)}"
                raise self.fail("is not a setting", (*path, key), fix)
            if not isinstance(value, known[key]):
                found, expected = type(value).__name__, known[key].__name__
                raise self.fail(f"is of type {found}, expected {expected}", (*path, key), "correct it")
        return table

    def texts(self, table: Mapping[str, Any], key: str, path: tuple[str | int, ...]) -> tuple[str, ...]:
        values = table.get(key, [])
        for index, value in enumerate(values):
            if not isinstance(value, str) or not value:
                raise self.fail("is no text", (*path, key, index), "list strings")
        return tuple(values)

    def paths(self, table: Mapping[str, Any], key: str, path: tuple[str | int, ...]) -> tuple[str, ...]:
        return tuple(self.path(each, (*path, key, index)) for index, each in enumerate(self.texts(table, key, path)))

    def path(self, value: str, path: tuple[str | int, ...]) -> str:
        try:
            return safe_path(value)
        except UsageError as error:
            raise self.fail(f"is {value!r}, no path inside the repository", path, "use a relative path") from error

    def choice(self, table: Mapping[str, Any], key: str, path: tuple[str | int, ...], known: type[Any]) -> Any:
        value = table.get(key)
        if value is None:
            return None
        names = [str(each) for each in known]
        if value not in names:
            fix = did_you_mean(value, names) or f"one of {', '.join(names)}"
            raise self.fail(f"is {value!r}", (*path, key), fix)
        return known(value)

    def variants(self, settings: Mapping[str, Any]) -> tuple[Variant, ...]:
        found = []
        for name, table in settings.get("variants", {}).items():
            path = (*_TABLE, "variants", name)
            entry = self.typed(table, path, _VARIANT)
            manifests = self.paths(entry, "manifests", path)
            if not manifests:
                raise self.fail("names no manifests", path, 'add manifests = ["pyproject.toml"]')
            lock = entry.get("lock", "")
            found.append(
                Variant(
                    name=name,
                    manifests=manifests,
                    lock=self.path(lock, (*path, "lock")) if lock else "",
                    extras=self.texts(entry, "extras", path),
                    groups=self.texts(entry, "groups", path),
                    python=entry.get("python", ""),
                    platform=entry.get("platform", ""),
                )
            )
        return tuple(found)

    def packages(
        self, settings: Mapping[str, Any], variants: tuple[Variant, ...], declarations: Declarations, root: Path
    ) -> tuple[FocusedPackage, ...]:
        found = []
        for name, table in settings.get("packages", {}).items():
            path = (*_TABLE, "packages", name)
            entry = self.typed(table, path, _PACKAGE)
            chosen = self.texts(entry, "variants", path)
            self.known(chosen, [each.name for each in variants], (*path, "variants"), "variant")
            distribution = normalised(name)
            found.append(
                FocusedPackage(
                    distribution=distribution,
                    imports=self.texts(entry, "imports", path) or import_names(distribution, root),
                    tier=self.choice(entry, "tier", path, Tier) or Tier.PRIMARY,
                    repository=entry.get("repository", ""),
                    tag=entry.get("tag", "v{version}"),
                    upstream_paths=self.texts(entry, "upstream_paths", path),
                    scope=self.choice(entry, "scope", path, VersionScope) or VersionScope.SHARED,
                    variants=chosen,
                    ranges=self.choice(entry, "range", path, RangeRule) or RangeRule.KEEP,
                    declared=bool(declarations.of(distribution)),
                )
            )
        return tuple(sorted(found, key=lambda each: each.distribution))

    def known(self, names: tuple[str, ...], known: list[str], path: tuple[str | int, ...], what: str) -> None:
        for name in names:
            if name not in known:
                fix = did_you_mean(name, known) or f"known: {', '.join(known) or 'none'}"
                raise self.fail(f"names {name!r}, which is no {what}", path, fix)

    def families(self, settings: Mapping[str, Any]) -> tuple[Family, ...]:
        found = []
        for index, table in enumerate(settings.get("families", [])):
            path = (*_TABLE, "families", index)
            entry = self.typed(table, path, _FAMILY)
            packages = tuple(normalised(each) for each in self.texts(entry, "packages", path))
            if len(packages) < 2:
                raise self.fail("has fewer than two packages", path, "list the packages that move together")
            found.append(Family(packages, entry.get("why", "")))
        return tuple(found)

    def followers(self, settings: Mapping[str, Any]) -> tuple[FollowingPlace, ...]:
        found = []
        for index, table in enumerate(settings.get("places", [])):
            path = (*_TABLE, "places", index)
            entry = self.typed(table, path, _PLACE)
            for key in _PLACE:
                if not entry.get(key):
                    raise self.fail(f"lacks `{key}`", path, f"add {key} = ...")
            if entry["pattern"].count("{version}") != 1:
                raise self.fail("lacks {version}, or has it twice", (*path, "pattern"), "put {version} where it stands")
            file = self.path(entry["file"], (*path, "file"))
            found.append(FollowingPlace(normalised(entry["package"]), file, entry["pattern"]))
        return tuple(found)
