"""Other tools on the cases of upgrade_history.py: griffe's breakages joined by name, pyright as a differential.

Both read the sources of the two releases from the audit's own cache, unpacked into a folder that is removed afterwards,
and only the client's files that name the package. `scripts/setup_audit_benchmark.sh` makes their environment.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tooling.upgrade.releases import Release

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".venv-audit"
NAMES = ("griffe", "pyright")
_RULES_OF_STYLE = {"reportMissingModuleSource", "reportMissingTypeStubs"}


@dataclass
class Reported:
    """Breaking findings of one tool on one case."""

    places: list[dict[str, Any]] = field(default_factory=list)
    """{path, line, kind, symbol, parameter}."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    error: str = ""


class Clock:
    """Wall and processor seconds of child processes between two moments."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), _children()

    def stop(self) -> tuple[float, float]:
        """Seconds since the start: wall, processor."""
        return round(time.perf_counter() - self._wall, 2), round(_children() - self._cpu, 2)


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def missing() -> str:
    """Return what to run if the tools are not installed; "" if they are."""
    if (ENVIRONMENT / ".ready").is_file():
        return ""
    return "the other tools are not installed: run `bash scripts/setup_audit_benchmark.sh`"


def unpack(release: Release, folder: Path) -> None:
    """Write the sources of a release: as much as an installation would hold, without what is compiled."""
    for path in release.files():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(release.read(path))


def client_files(checkout: Path, scope: tuple[str, ...], package: str) -> list[str]:
    """Files of the client, within the scope of its case, that name the package."""
    wanted = []
    for part in scope:
        start = checkout / part
        for file in [start] if start.is_file() else sorted(start.rglob("*.py")):
            if package.encode() in file.read_bytes():
                wanted.append(str(file.relative_to(checkout)))
    return wanted


def griffe(package: str, sources: Path, checkout: Path, files: list[str]) -> Reported:
    """griffe's breakages of old and new where the client uses them."""
    program = [str(ENVIRONMENT / "bin/python"), str(ROOT / "benchmarks/upgrade_griffe.py"), package]
    clock = Clock()
    done = subprocess.run(
        [*program, str(sources / "old"), str(sources / "new"), str(checkout), *files],
        capture_output=True,
        text=True,
        check=False,
    )
    wall, cpu = clock.stop()
    if done.returncode:
        return Reported([], wall, cpu, (done.stderr.strip().splitlines() or ["no output"])[-1])
    return Reported(json.loads(done.stdout), wall, cpu)


def pyright(_package: str, sources: Path, checkout: Path, files: list[str]) -> Reported:
    """Errors of the client against the new sources that it does not have against the old ones."""
    clock = Clock()
    before, after = (_checked(sources, side, checkout, files) for side in ("old", "new"))
    wall, cpu = clock.stop()
    if isinstance(before, str) or isinstance(after, str):
        return Reported([], wall, cpu, str(before if isinstance(before, str) else after))
    return Reported(_only_in(after, before), wall, cpu)


def _checked(sources: Path, side: str, checkout: Path, files: list[str]) -> list[dict[str, Any]] | str:
    """Errors as pyright tells them; a line if it failed. basedpyright runs it, with pyright's own standard rules."""
    settings = sources / f"pyright-{side}.json"
    extra = [str(sources / side), str(checkout), str(checkout / "src")]
    content = {
        "include": [str(checkout / file) for file in files],
        "extraPaths": extra,
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
        "pythonPlatform": "Linux",
    }
    settings.write_text(json.dumps(content))
    done = subprocess.run(
        [str(ENVIRONMENT / "bin/basedpyright"), "--project", str(settings), "--outputjson"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NODE_OPTIONS": "--max-old-space-size=6000"},
    )
    try:
        told = json.loads(done.stdout)["generalDiagnostics"]
    except (ValueError, KeyError):
        return (done.stderr.strip().splitlines() or ["no output"])[-1]
    return [
        {
            "path": str(Path(each["file"]).relative_to(checkout)),
            "line": each["range"]["start"]["line"] + 1,
            "kind": each.get("rule", ""),
            "symbol": each["message"].splitlines()[0],
            "parameter": "",
        }
        for each in told
        if each["severity"] == "error" and each.get("rule") not in _RULES_OF_STYLE
    ]


def _only_in(after: list[dict[str, Any]], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By file, line and rule: messages change with the types that they print."""
    known = Counter((each["path"], each["line"], each["kind"]) for each in before)
    new = []
    for each in after:
        key = (each["path"], each["line"], each["kind"])
        known[key] -= 1
        if known[key] < 0:
            new.append(each)
    return new


TOOLS = {"griffe": griffe, "pyright": pyright}
