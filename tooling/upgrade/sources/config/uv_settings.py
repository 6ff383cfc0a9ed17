"""What uv is told: its environment variables, uv.toml and `[tool.uv]`, in its own order of precedence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from tooling.upgrade.sources.config.pip_settings import is_true, number
from tooling.upgrade.sources.config.told import Told

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST_BYTES = 4 << 20
_Named = tuple[str, str, bool, bool]


def is_used(project: Path) -> bool:
    """Whether the project is one of uv: it has a lock, a uv.toml or a `[tool.uv]` table."""
    if (project / "uv.lock").is_file() or (project / "uv.toml").is_file():
        return True
    return bool(_table(_load(project / "pyproject.toml"), "tool", "uv"))


def told(environ: Mapping[str, str], project: Path | None = None) -> Told:
    """uv's settings in a project."""
    tables = list(_tables(environ, project))
    indexes, defaults = _environment_indexes(environ)
    for folder, table in tables:
        more, default = _table_indexes(table, folder)
        indexes += more
        defaults += default
    links = [link for link in environ.get("UV_FIND_LINKS", "").replace("\n", ",").split(",") if link.strip()]
    links += [_place(text, folder) for folder, table in tables for text in _texts(table.get("find-links"))]
    pinned, files = _sources(project)
    strategy = environ.get("UV_INDEX_STRATEGY") or _first(tables, "index-strategy") or "first-index"
    return Told(
        default=defaults[0][1] if defaults else None,
        default_name=defaults[0][0] if defaults else "",
        indexes=tuple(indexes),
        find_links=tuple(link.strip() for link in links),
        no_index=is_true(environ.get("UV_NO_INDEX", "")) or _first(tables, "no-index") is True,
        first_index=strategy == "first-index",
        offline=is_true(environ.get("UV_OFFLINE", "")) or _first(tables, "offline") is True,
        pinned=tuple(pinned.items()),
        files=tuple(files.items()),
        credentials=tuple(_environment_credentials(environ)),
        certificates=environ.get("SSL_CERT_FILE"),
        trusted_hosts=tuple(environ.get("UV_INSECURE_HOST", "").split()),
        timeout=number(environ.get("UV_HTTP_TIMEOUT")),
    )


def _tables(environ: Mapping[str, str], project: Path | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """(folder that relative paths start at, table), the strongest first."""
    named = environ.get("UV_CONFIG_FILE", "")
    if named:
        yield Path(named).parent, _load(Path(named))
        return
    if is_true(environ.get("UV_NO_CONFIG", "")):
        return
    if project is not None:
        own = project / "uv.toml"
        # Where there is a uv.toml, uv ignores the settings in pyproject.toml.
        table = _load(own) if own.is_file() else _table(_load(project / "pyproject.toml"), "tool", "uv")
        yield project, table
    home = Path(environ.get("HOME") or Path.home())
    yield home, _load(Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv/uv.toml")
    for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"):
        yield Path(folder), _load(Path(folder) / "uv/uv.toml")
    yield Path("/etc/uv"), _load(Path("/etc/uv/uv.toml"))


def _environment_indexes(environ: Mapping[str, str]) -> tuple[list[_Named], list[tuple[str, str]]]:
    words = f"{environ.get('UV_INDEX', '')} {environ.get('UV_EXTRA_INDEX_URL', '')}".split()
    defaults = [environ.get(name, "").strip() for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")]
    return [(*_named(word), False, False) for word in words], [_named(word) for word in defaults if word]


def _named(word: str) -> tuple[str, str]:
    """Name and address of "name=url"; the name is "" where there is none."""
    name, equals, url = word.partition("=")
    return (name, url) if equals and not set("/:") & set(name) else ("", word)


def _environment_credentials(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, value in environ.items():
        if name.startswith("UV_INDEX_") and name.endswith("_USERNAME"):
            index = name[len("UV_INDEX_") : -len("_USERNAME")]
            yield index, value, environ.get(f"UV_INDEX_{index}_PASSWORD", "")
        elif name.startswith("UV_INDEX_") and name.endswith("_PASSWORD"):
            index = name[len("UV_INDEX_") : -len("_PASSWORD")]
            if f"UV_INDEX_{index}_USERNAME" not in environ:
                yield index, "__token__", value


def _table_indexes(table: Mapping[str, Any], folder: Path) -> tuple[list[_Named], list[tuple[str, str]]]:
    indexes: list[_Named] = []
    defaults: list[tuple[str, str]] = []
    entries = table.get("index")
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
            continue
        url = _place(entry["url"], folder)
        name = entry["name"] if isinstance(entry.get("name"), str) else ""
        if entry.get("default") is True:
            defaults.append((name, url))
        else:
            indexes.append((name, url, entry.get("explicit") is True, entry.get("format") == "flat"))
    for place in (table, _table(table, "pip")):
        indexes += [("", _place(url, folder), False, False) for url in _texts(place.get("extra-index-url"))]
        defaults += [("", url) for url in _texts(place.get("index-url"))]
    return indexes, defaults


def _sources(project: Path | None) -> tuple[dict[str, str], dict[str, str]]:
    """Indexes and files that `[tool.uv.sources]` names per distribution. A list with markers stands for its first
    entry; what comes from git is not looked at: a release is wanted, not a commit."""
    pinned: dict[str, str] = {}
    files: dict[str, str] = {}
    table = _table(_load(project / "pyproject.toml"), "tool", "uv", "sources") if project is not None else {}
    for name, value in table.items():
        entry = value[0] if isinstance(value, list) and value else value
        if project is None or not isinstance(entry, dict):
            continue
        if isinstance(entry.get("index"), str):
            pinned[canonicalize_name(name)] = entry["index"]
        elif isinstance(entry.get("url"), str):
            files[canonicalize_name(name)] = entry["url"]
        elif isinstance(entry.get("path"), str) and entry["path"].endswith((".whl", ".tar.gz", ".zip")):
            files[canonicalize_name(name)] = _place(entry["path"], project)
    return pinned, files


def _first(tables: list[tuple[Path, dict[str, Any]]], key: str) -> object:
    return next((table[key] for _, table in tables if key in table), None)


def _place(text: str, folder: Path) -> str:
    return text if "://" in text else str((folder / text).resolve())


def _texts(value: object) -> list[str]:
    found = value if isinstance(value, list) else [value]
    return [text for text in found if isinstance(text, str)]


def _table(table: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    found: Any = table
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _load(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return {}
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, tomllib.TOMLDecodeError):
        return {}
