"""What every run needs: the repository, its policy, and a way to releases."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.python.versions import version_or_none
from tooling.upgrade.declarations.find import find_declarations
from tooling.upgrade.manifests.baseline import baseline, is_excluded
from tooling.upgrade.policy.import_names import import_names
from tooling.upgrade.policy.read import read_policy
from tooling.upgrade.policy.watched import FocusedPackage
from tooling.upgrade.sources.cache import default_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tooling.upgrade.declarations.declaration import Declarations
    from tooling.upgrade.manifests.baseline import Baseline
    from tooling.upgrade.policy.watched import UpgradePolicy
    from tooling.upgrade.releases import Origin, Release, Upstream
    from tooling.upgrade.sources.indexed import Catalogue
    from tooling.upgrade.usage.index import UsageIndex


@dataclass
class UpgradeContext:
    """One repository in one run."""

    root: Path
    policy: UpgradePolicy
    declarations: Declarations
    cache: Path
    catalogue: Catalogue
    report: Callable[[str], None]
    """Called with a line about what takes time."""
    home: Path | None = None
    """Where that .venv is, if not in `root`: of a copy, what it is a copy of."""
    _opened: dict[tuple[str, str], Upstream] = field(default_factory=dict)

    def package(self, distribution: str) -> FocusedPackage:
        """Return the policy's record of a package; one made up for a package that is not watched. What that is imported
        as is read off its releases once they are open: `python-telegram-bot` is `telegram`."""
        known = self.policy.package(distribution)
        if known is not None:
            return known
        opened = [upstream.source.roots() for (name, _), upstream in self._opened.items() if name == distribution]
        imports = tuple(sorted(frozenset().union(*opened))) or import_names(distribution, self.root)
        return FocusedPackage(distribution=distribution, imports=imports, declared=False)

    def baseline(self, distribution: str, variant: str = "") -> Baseline | None:
        """Return the version that the repository has now; see `manifests.baseline`."""
        return baseline(distribution, self.declarations, self.policy, self.root, variant=variant)

    def release(self, distribution: str, version: str) -> Release:
        """From the project's environment if it has that very version, else from the cache or an index. Raises like
        `Catalogue.release`."""
        from tooling.upgrade.sources.folder import installed_release

        wanted = version_or_none(version)
        for folder in sorted((self.home or self.root).glob(".venv/lib/python3*/site-packages")):
            release = installed_release(distribution, [folder])
            found = version_or_none(release.origin.version) if release is not None else None
            # A local part of the installed version ("2.9.1+cpu") says how it was built, not what it is
            if release is not None and found is not None and wanted in (found, Version(found.public)):
                release.origin = replace(release.origin, version=version)
                return release
        return self.catalogue.release(distribution, version)

    def upstream(self, distribution: str, version: str) -> Upstream:
        """Return a release as symbols; opened once in a run."""
        from tooling.python.symbols.tree import SymbolTree

        key = (distribution, version)
        if key not in self._opened:
            self.report(f"{distribution} {version}: reading")
            self._opened[key] = SymbolTree(self.release(*key), cache=self.cache / "facts")
        return self._opened[key]

    def origins(self) -> tuple[Origin, ...]:
        """Where the releases of this run were read from, by name and version."""
        found = [upstream.source.origin for upstream in self._opened.values()]
        return tuple(sorted(found, key=lambda origin: (origin.distribution, origin.version)))

    def usage(self, imports: Sequence[str], members: frozenset[str] = frozenset()) -> UsageIndex:
        """Return what the repository's own code does with packages; files that the policy excludes are kept apart.
        members: attributes that are worth a use whoever they belong to."""
        from tooling.upgrade.usage.index import index_repository

        self.report("reading the repository")
        index = index_repository(self.root, imports, cache=self.cache / "usage", members=members)
        return replace(
            index,
            files=tuple(file for file in index.files if not is_excluded(file.path, self.policy)),
            excluded=tuple(file for file in index.files if is_excluded(file.path, self.policy)),
        )

    def looked_at(self) -> int:
        """Count the repository's files of code that an audit reads: of a kind that it understands, and not excluded.
        Manifests and pages are read too, but one that finds nothing else has not looked at anything."""
        from tooling.upgrade.declarations.find import repository_files
        from tooling.upgrade.interfaces.repository import file_kind

        return sum(
            file_kind(path) not in (None, "settings", "page") and not is_excluded(path, self.policy)
            for path in repository_files(self.root)
        )

    def unread(self) -> tuple[str, ...]:
        """Python files of the repository that an index leaves out because they cannot be read, each with the reason."""
        from tooling.upgrade.usage.checkout import MAX_BYTES, Checkout

        found = []
        for path in Checkout(self.root).paths:
            if is_excluded(path, self.policy):
                continue
            try:
                if not (self.root / path).is_file():
                    continue
                with open(self.root / path, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
            except OSError as error:
                found.append(f"{path}: {error.strerror}")
            else:
                found += [f"{path}: larger than {MAX_BYTES} bytes"] if size > MAX_BYTES else []
        return tuple(found)

    def imports(self, distributions: Sequence[str]) -> tuple[str, ...]:
        """Import names of several distributions."""
        return tuple(dict.fromkeys(name for each in distributions for name in self.package(each).imports))


def open_context(
    root: Path,
    *,
    cache: Path | None = None,
    offline: bool = False,
    report: Callable[[str], None] = lambda _line: None,
) -> UpgradeContext:
    """Return the context of the repository at `root`. Raises UsageError for a folder that is not there and for a policy
    that makes no sense."""
    from tooling.upgrade.sources.indexed import Catalogue

    if not root.is_dir():
        raise UsageError("no such folder", where=str(root), fix="name the repository with --repo")
    declarations = find_declarations(root)
    policy = read_policy(root, declarations)
    folder = cache or default_folder()
    known = [*(each.distribution for each in policy.packages), *(each.distribution for each in declarations.found)]
    catalogue = Catalogue(folder, offline=offline, project=root, known=known, report=report)
    return UpgradeContext(root, policy, declarations, folder, catalogue, report)


def unknown_now(context: UpgradeContext, distribution: str, fix: str) -> UsageError:
    """Return the error for a package that no manifest names a version of. fix: what helps if the name is right."""
    known = {each.distribution for each in context.policy.packages}
    known |= {each.distribution for each in context.declarations.found}
    alike = did_you_mean(distribution, sorted(known - {distribution}))
    message = f"no manifest says which version of {distribution} is used now"
    return UsageError(message, where=distribution, fix=f"{alike} Or {fix}" if alike else fix)
