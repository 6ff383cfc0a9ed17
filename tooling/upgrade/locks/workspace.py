"""A copy of what a resolver reads, in a temporary folder: the repository is never where it works."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.cli.errors import ToolError
from tooling.upgrade.declarations.find import repository_files
from tooling.upgrade.declarations.records import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tooling.kit.change.plan import Plan
    from tooling.upgrade.declarations.records import Declarations
    from tooling.upgrade.policy.records import Variant

_NAMES = frozenset({"pyproject.toml", "uv.toml", ".python-version", "setup.cfg"})
_LIMIT = 4_000_000


@contextmanager
def workspace(
    root: Path, plan: Plan | None, variant: Variant, declarations: Declarations, overlay: Mapping[str, bytes]
) -> Iterator[Path]:
    """The folder. plan: its outcome is what is copied; None for the tree as it is. overlay: contents on top of it.

    A variant's manifest and lock stand in it under the names the resolver looks for."""
    with tempfile.TemporaryDirectory(prefix="areal-lock-") as name:
        folder = Path(name)
        for path in _paths(root, variant, declarations):
            content = overlay.get(path) if path in overlay else _content(root, plan, path)
            if content is not None and len(content) <= _LIMIT:
                _put(folder / path, content)
        manifest = variant.manifests[0]
        if manifest != "pyproject.toml" and manifest.endswith(".toml"):
            _put(folder / "pyproject.toml", (folder / manifest).read_bytes())
        if variant.lock.endswith(".lock") and (folder / variant.lock).is_file():
            _put(folder / "uv.lock", (folder / variant.lock).read_bytes())
        elif (folder / "uv.lock").is_file():
            (folder / "uv.lock").unlink()  # another variant's
        yield folder


def _paths(root: Path, variant: Variant, declarations: Declarations) -> list[str]:
    wanted = {*variant.manifests, *declarations.files}
    if variant.lock:
        wanted.add(variant.lock)
    for path in repository_files(root):
        name = path.rpartition("/")[2]
        if name in _NAMES or ("/" not in path and name.upper().startswith(("README", "LICENSE"))):
            wanted.add(path)
    return sorted(wanted)


def _content(root: Path, plan: Plan | None, path: str) -> bytes | None:
    try:
        if plan is not None:
            return plan.read(path)
        file = root / path
        return file.read_bytes() if file.is_file() and not file.is_symlink() else None
    except (OSError, ToolError):
        return None


def _put(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def stated_requirements(declarations: Declarations, variant: Variant) -> str:
    """The requirements of a manifest that only running would reveal (setup.py), as far as they are written out."""
    lines = []
    for each in declarations.found:
        if each.path not in variant.manifests or each.kind not in {Kind.REQUIREMENT, Kind.SOURCE}:
            continue
        if each.group and variant.extras and each.group not in {*variant.extras, *variant.groups}:
            continue
        lines.append(each.text)
    return "\n".join([*lines, ""])
