"""Write a project of your own: a configuration, a reward, a small dataset, registries and a pyproject.toml.

examples:
  areal init digits                  # write the folder digits
  cd digits && areal train config.yaml   # it learns on a CPU in under a minute
  areal-new reward my-score          # add a reward; `areal train config.yaml reward=my_score` finds it
  areal init . --dry-run             # only say what would be written here

Nothing is ever overwritten: a file that is in the way stops the command before it writes any. A folder that git does
not know yet becomes a repository, since `areal-new` works in one.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

from areal.api import UsageError
from areal.cli.output import CommandReport

if TYPE_CHECKING:
    import argparse

_FILES: Final = Path(__file__).resolve().parents[1] / "project"
_SUFFIX: Final = ".template"
_PACKAGE: Final = "PACKAGE"
"""Stands for the package in paths."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal init`."""
    parser.add_argument(
        "folder", metavar="DIR", type=Path, nargs="?", default=Path(), help="folder to write (default: this one)"
    )
    parser.add_argument("--package", metavar="NAME", help="import name of its package (default: the folder's name)")
    parser.add_argument("--no-git", action="store_true", help="make no git repository; `areal-new` needs one")
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")


def run(arguments: argparse.Namespace) -> CommandReport:
    """Write the project, all of it or nothing."""
    folder = arguments.folder.resolve()
    package = _package_name(folder, arguments.package)
    files = project_files(package)
    _refuse_existing(folder, files)
    with_git = not arguments.no_git and not any((parent / ".git").exists() for parent in (folder, *folder.parents))
    if not arguments.dry_run:
        _write(folder, files, with_git=with_git)
    done = "would write" if arguments.dry_run else "wrote"
    repository = f"\n{'would make' if arguments.dry_run else 'made'} a git repository" if with_git else ""
    here = "" if folder == Path.cwd() else f"cd {arguments.folder} && "
    return CommandReport(
        text="\n".join([f"{done} {len(files)} files in {folder}:", *(f"  {path}" for path in files)]) + repository,
        data={
            "dry_run": arguments.dry_run,
            "directory": str(folder),
            "package": package,
            "files": list(files),
            "git": with_git,
        },
        next_steps=(
            f"`{here}areal train config.yaml` learns a small task on a CPU in under a minute.",
            "`areal-new reward my-score` adds a reward that `areal train config.yaml reward=my_score` finds.",
        ),
    )


def project_files(package: str) -> dict[str, str]:
    """Return the files of a project, by path, sorted."""
    words = {"package": package, "project": package.replace("_", "-")}
    files = {}
    for source in _FILES.rglob(f"*{_SUFFIX}"):
        path = source.relative_to(_FILES).as_posix().removesuffix(_SUFFIX).replace(_PACKAGE, package)
        files[path] = Template(source.read_text(encoding="utf-8")).substitute(words)
    return dict(sorted(files.items()))


def _package_name(folder: Path, given: str | None) -> str:
    """Return the import name of the package. Raises UsageError for one that cannot be imported or belongs to others."""
    name = given or re.sub(r"\W+", "_", folder.name, flags=re.ASCII).strip("_").lower()
    fix = "choose another name with --package"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UsageError(
            f"{name!r} cannot be the name of a package: expected small letters, digits and underscores",
            where="--package" if given else str(folder),
            fix=fix,
        )
    reserved = name in {"areal", "areal_harness", "data", "docs", "runs", "tests", "tooling"}
    found = importlib.util.find_spec(name) if name not in sys.stdlib_module_names and not reserved else None
    # A folder of the same name below the current one is the project itself, seen as a namespace.
    if reserved or name in sys.stdlib_module_names or (found is not None and found.origin is not None):
        raise UsageError(f"there is a module {name!r} already, which the package would hide", where=name, fix=fix)
    return name


def _refuse_existing(folder: Path, files: dict[str, str]) -> None:
    """Raise UsageError when something is in the way; what the folder holds besides does not matter."""
    if folder.exists() and not folder.is_dir():
        raise UsageError("there is a file of that name", where=str(folder), fix="choose another folder")
    taken = sorted({top for path in files if (folder / (top := path.partition("/")[0])).exists()})
    if taken:
        raise UsageError(
            f"nothing was written: {folder} already has {', '.join(taken)}",
            where=str(folder),
            fix="choose a new folder",
        )


def _write(folder: Path, files: dict[str, str], *, with_git: bool) -> None:
    """Put everything beside its place first, so that a failure leaves nothing behind."""
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    moved: list[Path] = []
    try:
        with tempfile.TemporaryDirectory(prefix=".areal-init.tmp-", dir=folder) as name:
            stage = Path(name)
            for path, content in files.items():
                target = stage / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(content, encoding="utf-8")
            if with_git:
                _make_repository(stage)
            for entry in sorted(stage.iterdir()):
                target = folder / entry.name
                entry.rename(target)
                moved.append(target)
    except BaseException:
        # Also for Ctrl-C: half a project would stop the next attempt.
        for entry in moved:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
        for parent in made:
            parent.rmdir()
        raise


def _make_repository(folder: Path) -> None:
    try:
        subprocess.run(["git", "init", "-q", str(folder)], check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UsageError("git is not installed", fix="install git, or pass --no-git") from error
    except subprocess.CalledProcessError as error:
        raise UsageError(f"git init failed: {error.stderr.strip()}", fix="mend git, or pass --no-git") from error
