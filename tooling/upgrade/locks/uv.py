"""Run uv in a throw-away folder that holds what a resolution needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from tooling.cli.errors import ToolError, UsageError
from tooling.cli.toml import TOMLError, parse_toml
from tooling.upgrade.declarations.declaration import DeclarationKind, SpecifierStyle
from tooling.upgrade.declarations.find import repository_files
from tooling.upgrade.declarations.pep508 import as_pep508
from tooling.upgrade.errors import OfflineError, ResolutionError, UpstreamError
from tooling.upgrade.sources.index_config import read_pip_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tooling.kit.change.plan import Plan
    from tooling.upgrade.declarations.declaration import Declaration, Declarations
    from tooling.upgrade.policy.watched import Variant


_NAMES = frozenset({"pyproject.toml", "uv.toml", ".python-version", "setup.cfg"})
_LIMIT = 4_000_000


@contextmanager
def workspace(
    root: Path,
    plan: Plan | None,
    variant: Variant,
    declarations: Declarations,
    overlay: Mapping[str, bytes],
    also: Sequence[str] = (),
) -> Iterator[Path]:
    """Make the folder. plan: its outcome is what is copied; None for the tree as it is. overlay: contents on top of it.
    also: further files.

    A variant's manifest and lock stand in it under the names the resolver looks for."""
    with tempfile.TemporaryDirectory(prefix="areal-lock-") as name:
        folder = Path(name)
        wanted = {*variant.manifests, *declarations.files, *also}
        if variant.lock:
            wanted.add(variant.lock)
        for file in repository_files(root):
            base = file.rpartition("/")[2]
            if base in _NAMES or ("/" not in file and base.upper().startswith(("README", "LICENSE"))):
                wanted.add(file)
        for path in sorted(wanted):
            content = overlay.get(path) if path in overlay else _content(root, plan, path)
            if content is not None and len(content) <= _LIMIT:
                _put(folder / path, content)
        try:
            settings = parse_toml((root / "pyproject.toml").read_bytes()).get("tool", {}).get("uv", {})
        except (OSError, *TOMLError):
            settings = {}
        for link in settings.get("find-links", []):  # folders of wheels, which uv looks for beside the manifest
            source, target = root / link, folder / link
            if source.is_dir() and not target.exists() and target.resolve().is_relative_to(folder.resolve()):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(source.resolve(), target_is_directory=True)
        manifest = variant.manifests[0]
        if manifest != "pyproject.toml" and manifest.endswith(".toml"):
            _put(folder / "pyproject.toml", (folder / manifest).read_bytes())
        if variant.lock.endswith(".lock") and (folder / variant.lock).is_file():
            _put(folder / "uv.lock", (folder / variant.lock).read_bytes())
        elif (folder / "uv.lock").is_file():
            (folder / "uv.lock").unlink()  # another variant's
        yield folder


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


def stated_requirements(found: Iterable[Declaration], variant: Variant) -> tuple[str, tuple[str, ...]]:
    """Return the requirements of a manifest that the resolver does not read (setup.py, Poetry, conda), as far as they
    are written out; and notes on those that PEP 508 cannot express, which are resolved with any version."""
    lines, notes = [], []
    for each in found:
        if each.kind not in {DeclarationKind.REQUIREMENT, DeclarationKind.SOURCE}:
            continue
        if each.group and variant.extras and each.group not in {*variant.extras, *variant.groups}:
            continue
        if each.style is SpecifierStyle.PEP508:
            lines.append(each.text)
        elif each.style is not SpecifierStyle.OPAQUE and each.distribution != "python":
            marker = f"; {each.marker}" if each.marker else ""
            extras = f"[{','.join(each.extras)}]" if each.extras else ""
            specifier = as_pep508(each.specifier, each.style)
            line = f"{each.distribution}{extras}{specifier or ''}{marker}"
            if not _is_requirement(line):
                line, specifier = each.distribution, None
            if specifier is None:
                notes.append(
                    f"{each.where}: {each.text} cannot be expressed in PEP 508, so any version of it was accepted"
                )
            lines.append(line)
    return "\n".join([*lines, ""]), tuple(notes)


def _is_requirement(text: str) -> bool:
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


_OFFLINE = re.compile(r"network (?:was|is) disabled|not found in the cache", re.IGNORECASE)
_NETWORK = re.compile(r"error sending request|dns error|failed to (?:fetch|download|connect)|timed out", re.IGNORECASE)
_CONFLICT = re.compile(r"No solution found|requirements are unsatisfiable|cannot be used together", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CREDENTIALS = re.compile(r"(https?://)[^/\s@]+@")


@dataclass(frozen=True, slots=True)
class UvRun:
    """What uv said. `solved` is False for a conflict; any other failure raises."""

    solved: bool
    output: str
    complaint: str


def find_uv() -> str:
    """Path of the program. Raises UsageError when there is none."""
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise UsageError("the `uv` program was not found", fix="`pip install uv`, or leave locks alone with --no-lock")
    return found


def pip_environment() -> dict[str, str]:
    """Return pip's index settings as uv's variables, without those that the environment sets for uv already."""
    pip = read_pip_config({"VIRTUAL_ENV": sys.prefix, **os.environ})
    variables = {
        "UV_FIND_LINKS": ",".join(pip.find_links),
        "UV_DEFAULT_INDEX": pip.default or "",
        "UV_INDEX": " ".join(url for _, url, _, _ in pip.indexes),
        "SSL_CERT_FILE": pip.certificates or "",
    }
    if pip.indexes:
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # pip's rule: the best version from any index
    return {name: value for name, value in variables.items() if value and name not in os.environ}


_LIMIT_SECONDS = 600


def run_uv(
    arguments: Sequence[str],
    folder: Path,
    *,
    environment: Mapping[str, str] | None = None,
    offline: bool = False,
) -> UvRun:
    """Run uv in a folder. Raises ResolutionError for failures that are not conflicts, UpstreamError (OfflineError) when
    the index could not be reached, UsageError when there is no uv."""
    variables = {
        **os.environ,
        **(pip_environment() if environment is None else environment),
        "NO_COLOR": "1",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    variables.pop("VIRTUAL_ENV", None)  # uv would warn that it is not the project's
    if offline:
        variables["UV_OFFLINE"] = "1"
    command = [find_uv(), *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=_LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise ResolutionError(
            f"uv did not finish within {_LIMIT_SECONDS} s", fix="try again, or use --no-lock"
        ) from error
    complaint = _clean(done.stderr)
    if done.returncode == 0:
        return UvRun(True, done.stdout, complaint)
    if offline and _OFFLINE.search(complaint):
        message = "the resolver's cache lacks something, and the network may not be used"
        raise OfflineError(message, fix="run once without --offline, or use --no-lock")
    if _CONFLICT.search(complaint):
        return UvRun(False, "", complaint)
    if _NETWORK.search(complaint):
        raise UpstreamError(f"the index cannot be reached: {_first(complaint)}", fix="try again, or use --no-lock")
    message = f"uv failed: {_first(complaint)}"
    raise ResolutionError(message, fix="see `raw`, or use --no-lock", details={"raw": complaint})


def _first(complaint: str) -> str:
    marks = ("error", "  cause", "  \u00d7", "  \u2570")
    lines = [line for line in complaint.splitlines() if line.startswith(marks)]
    return " ".join(line.strip() for line in lines[:3])[:500] or complaint.strip()[:500] or "it said nothing"


def _clean(text: str) -> str:
    return _CREDENTIALS.sub(r"\1", _COLOUR.sub("", text))
