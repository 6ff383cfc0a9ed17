"""What pip is told: its environment variables, its configuration files, in its own order of precedence."""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.upgrade.sources.config.told import Told

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SECTIONS = ("global", "download", "install")
"""Later ones win, as `[install]` does for `pip install`."""
_MOST_BYTES = 1 << 20


def told(environ: Mapping[str, str], project: Path | None = None) -> Told:
    """pip's settings for installing into the project's environment."""
    options = _options(environ, project)

    def words(name: str) -> tuple[str, ...]:
        return tuple(options.get(name, "").split())

    return Told(
        default=options.get("index-url") or None,
        indexes=tuple(("", url, False, False) for url in words("extra-index-url")),
        find_links=words("find-links"),
        no_index=is_true(options.get("no-index", "")),
        proxy=options.get("proxy") or None,
        certificates=options.get("cert") or environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE"),
        trusted_hosts=words("trusted-host"),
        timeout=number(options.get("timeout") or options.get("default-timeout")),
        retries=_whole(options.get("retries")),
    )


def is_true(text: str) -> bool:
    """How configuration files and environments say yes."""
    return text.strip().lower() in {"1", "true", "yes", "on", "t", "y"}


def number(text: str | None) -> float | None:
    """A positive number of seconds, None for anything else."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < 86_400 else None


def _whole(text: str | None) -> int | None:
    return min(int(text), 20) if text is not None and text.strip().isdecimal() else None


def _options(environ: Mapping[str, str], project: Path | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in _files(environ, project):
        found.update(_read(path))
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            found[name[4:].lower().replace("_", "-")] = value
    return found


def _files(environ: Mapping[str, str], project: Path | None) -> Iterator[Path]:
    """Configuration files, the weakest first."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return
    home = Path(environ.get("HOME") or Path.home())
    if sys.platform == "win32":
        yield Path(environ.get("PROGRAMDATA", "C:/ProgramData")) / "pip/pip.ini"
        yield home / "pip/pip.ini"
        yield Path(environ.get("APPDATA", home / "AppData/Roaming")) / "pip/pip.ini"
    else:
        if sys.platform == "darwin":
            yield Path("/Library/Application Support/pip/pip.conf")
        for folder in reversed((environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")):
            yield Path(folder) / "pip/pip.conf"
        yield Path("/etc/pip.conf")
        yield home / ".pip/pip.conf"
        if sys.platform == "darwin":
            yield home / "Library/Application Support/pip/pip.conf"
        yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"
    name = "pip.ini" if sys.platform == "win32" else "pip.conf"
    site = environ.get("VIRTUAL_ENV") or (str(project / ".venv") if project is not None else "")
    if site:
        yield Path(site) / name
    if named:
        yield Path(named)


def _read(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return {}
        parser.read_string(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, configparser.Error):
        return {}
    found: dict[str, str] = {}
    for section in _SECTIONS:
        if parser.has_section(section):
            for name, value in parser.items(section):
                found[name.strip().lower().replace("_", "-").removeprefix("--")] = value
    return found
