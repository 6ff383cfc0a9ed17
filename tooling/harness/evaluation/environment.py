"""Makes `.venv` of a workspace, so that the commands of AGENTS.md and the skills work there as they are written.

It takes packages from this Python's environment; its console scripts run the code of the workspace. `scripts/setup.sh`
finds it ready. What an agent installs stays in it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final

FOLDER: Final = ".venv"
_STAMPED: Final = ("pyproject.toml", "constraints.txt", "scripts/setup.sh", "scripts/environment.sh")
"""What setup.sh compares with its stamp, after the folder."""


def make_environment(root: Path) -> None:
    """Make the virtual environment of the workspace at `root`; git ignores it."""
    place = root.resolve() / FOLDER
    venv.EnvBuilder(symlinks=True, with_pip=False).create(place)
    own = Path(sysconfig.get_path("purelib", vars={"base": os.fspath(place), "platbase": os.fspath(place)}))
    packages = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    lines = [os.fspath(place.parent), *(f"import site; site.addsitedir({folder!r})" for folder in packages)]
    (own / "workspace.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for script in Path(sysconfig.get_path("scripts")).iterdir():
        _copy_script(script, place / "bin")
    _stamp(place)
    exclude = root / ".git/info/exclude"
    if exclude.parent.parent.is_dir():
        exclude.parent.mkdir(exist_ok=True)
        with exclude.open("a", encoding="utf-8") as file:
            file.write(f"/{FOLDER}/\n")


def _copy_script(script: Path, folder: Path) -> None:
    """Copy a script so that it starts the environment's Python; link other programs."""
    target = folder / script.name
    if target.exists() or script.name.startswith(("activate", "Activate", "python")) or not script.is_file():
        return
    content = script.read_bytes()
    head, _, body = content.partition(b"\n")
    python = os.fsencode(Path(sys.executable).parent)
    if head.startswith(b"#!" + python):
        target.write_bytes(b"#!" + os.fsencode(folder / "python") + b"\n" + body)
        target.chmod(0o755)
    else:
        target.symlink_to(script)


def _stamp(place: Path) -> None:
    """Leave the mark by which setup.sh sees that nothing is to be done."""
    files = [place.parent / name for name in _STAMPED]
    if all(file.is_file() for file in files):
        known = b"".join([os.fsencode(place.parent) + b"\n", *(file.read_bytes() for file in files)])
        (place / ".areal-ready").write_text(f"{hashlib.sha256(known).hexdigest()}\n", encoding="utf-8")
