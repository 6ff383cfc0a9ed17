"""Read the configured package indexes: pip's and uv's files and environment variables."""

from __future__ import annotations

import configparser
import os
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from tooling.cli.toml import table_in
from tooling.upgrade.sources.links import credentials_of, without_credentials

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """What one tool's configuration says. Fields that it does not mention are None or empty."""

    default: str | None = None
    default_name: str = ""
    indexes: tuple[tuple[str, str, bool, bool], ...] = ()
    """(name, URL with credentials, explicit, flat) beside the default one, in order."""
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    first_index: bool = False
    """Whether the first index that knows a package is the only one asked for it."""
    offline: bool = False
    pinned: tuple[tuple[str, str], ...] = ()
    """(distribution, name of an index), of `[tool.uv.sources]`."""
    files: tuple[tuple[str, str], ...] = ()
    """(distribution, path or URL of a file or folder), likewise."""
    credentials: tuple[tuple[str, str, str], ...] = ()
    """(name of an index, user, password)."""
    proxy: str | None = None
    certificates: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    timeout: float | None = None
    retries: int | None = None


_SECTIONS = ("global", "download", "install")
"""Later ones win, as `[install]` does for `pip install`."""
_MOST_BYTES = 1 << 20


def read_pip_config(environ: Mapping[str, str], project: Path | None = None) -> IndexConfig:
    """pip's settings for installing into the project's environment."""
    options: dict[str, str] = {}
    for path in _files(environ, project):
        options.update(_read(path))
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            options[name[4:].lower().replace("_", "-")] = value

    def words(name: str) -> tuple[str, ...]:
        return tuple(options.get(name, "").split())

    text = options.get("retries")
    return IndexConfig(
        default=options.get("index-url") or None,
        indexes=tuple(("", url, False, False) for url in words("extra-index-url")),
        find_links=words("find-links"),
        no_index=is_true(options.get("no-index", "")),
        proxy=options.get("proxy") or None,
        certificates=options.get("cert") or environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE"),
        trusted_hosts=words("trusted-host"),
        timeout=number(options.get("timeout") or options.get("default-timeout")),
        retries=min(int(text), 20) if text is not None and text.strip().isdecimal() else None,
    )


def is_true(text: str) -> bool:
    """How configuration files and environments say yes."""
    return text.strip().lower() in {"1", "true", "yes", "on", "t", "y"}


def number(text: str | None) -> float | None:
    """Return a positive number of seconds, None for anything else."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < 86_400 else None


def _files(environ: Mapping[str, str], project: Path | None) -> Iterator[Path]:
    """Yield configuration files, the weakest first."""
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


_MOST_UV_BYTES = 4 << 20
_Named = tuple[str, str, bool, bool]


def uses_uv(project: Path) -> bool:
    """Whether the project is one of uv: it has a lock, a uv.toml or a `[tool.uv]` table."""
    if (project / "uv.lock").is_file() or (project / "uv.toml").is_file():
        return True
    return bool(table_in(_load(project / "pyproject.toml"), "tool", "uv"))


def read_uv_config(environ: Mapping[str, str], project: Path | None = None) -> IndexConfig:
    """uv's settings in a project."""
    tables = list(_tables(environ, project))
    words = f"{environ.get('UV_INDEX', '')} {environ.get('UV_EXTRA_INDEX_URL', '')}".split()
    named = [environ.get(name, "").strip() for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")]
    indexes = [(*_named(word), False, False) for word in words]
    defaults = [_named(word) for word in named if word]
    for folder, table in tables:
        more, default = _table_indexes(table, folder)
        indexes += more
        defaults += default
    links = [link for link in environ.get("UV_FIND_LINKS", "").replace("\n", ",").split(",") if link.strip()]
    links += [_place(text, folder) for folder, table in tables for text in _texts(table.get("find-links"))]
    pinned, files = _sources(project)
    strategy = environ.get("UV_INDEX_STRATEGY") or _first(tables, "index-strategy") or "first-index"
    return IndexConfig(
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
        table = _load(own) if own.is_file() else table_in(_load(project / "pyproject.toml"), "tool", "uv")
        yield project, table
    home = Path(environ.get("HOME") or Path.home())
    yield home, _load(Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv/uv.toml")
    for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"):
        yield Path(folder), _load(Path(folder) / "uv/uv.toml")
    yield Path("/etc/uv"), _load(Path("/etc/uv/uv.toml"))


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
    for place in (table, table_in(table, "pip")):
        indexes += [("", _place(url, folder), False, False) for url in _texts(place.get("extra-index-url"))]
        defaults += [("", url) for url in _texts(place.get("index-url"))]
    return indexes, defaults


def _sources(project: Path | None) -> tuple[dict[str, str], dict[str, str]]:
    """Indexes and files that `[tool.uv.sources]` names per distribution. A list with markers stands for its first
    entry; what comes from git is not looked at: a release is wanted, not a commit."""
    pinned: dict[str, str] = {}
    files: dict[str, str] = {}
    table = table_in(_load(project / "pyproject.toml"), "tool", "uv", "sources") if project is not None else {}
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


def _load(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file() or path.stat().st_size > _MOST_UV_BYTES:
            return {}
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, tomllib.TOMLDecodeError):
        return {}


PUBLIC_INDEX = "https://pypi.org/simple"


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """A place that answers the Simple API."""

    url: str
    """Without credentials and trailing slash."""
    name: str = ""
    explicit: bool = False
    """Asked only for packages that `[tool.uv.sources]` pins to it."""
    flat: bool = False
    """A page or folder of files instead of one page per project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """Everything that decides where releases come from."""

    indexes: tuple[PackageIndex, ...] = (PackageIndex(PUBLIC_INDEX),)
    find_links: tuple[str, ...] = ()
    """Folders, archives, and addresses of pages with links."""
    first_index: bool = False
    offline: bool = False
    pinned: Mapping[str, str] = field(default_factory=dict)
    """Distribution to name of the index that alone is asked."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Distribution to a path or URL that replaces every index."""
    credentials: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    """Host with port (lower case) to user and password. Never shown."""
    proxy: str | None = field(default=None, repr=False)
    certificates: str | None = None
    trusted_hosts: frozenset[str] = frozenset()
    timeout: float = 15.0
    """Seconds without a byte."""
    retries: int = 4

    def indexes_for(self, distribution: str) -> Sequence[PackageIndex]:
        """Return the indexes to ask for a distribution, in order."""
        pinned = self.pinned.get(distribution)
        if pinned is not None:
            return [index for index in self.indexes if index.name == pinned]
        return [index for index in self.indexes if not index.explicit]


def read_settings(project: Path | None = None, environ: Mapping[str, str] | None = None) -> IndexSettings:
    """Read what this user, in this project, has configured. environ: instead of the process's, for tests. Files that
    cannot be read or understood count as absent: which tool complains about them is not this one's matter."""
    environ = os.environ if environ is None else environ
    pip = read_pip_config(environ, project)
    uv = read_uv_config(environ, project)
    preferred = [uv, pip] if project is not None and uses_uv(project) else [pip, uv]
    return combined(preferred)


def combined(preferred: Sequence[IndexConfig]) -> IndexSettings:
    """Several tools' configurations as one, the preferred tool first."""
    credentials: dict[str, tuple[str, str]] = {}
    by_name = {name: (user, password) for config in preferred for name, user, password in config.credentials}
    indexes = []
    for name, url, explicit, flat in _ordered(preferred):
        indexes.append(PackageIndex(without_credentials(url).rstrip("/"), name, explicit, flat))
        known = by_name.get(
            "".join(character if character.isalnum() else "_" for character in name).upper()
        ) or credentials_of(url)
        if known is not None:
            credentials.setdefault(host_of(url), known)
    for config in preferred:
        for url in config.find_links:
            known = credentials_of(url) if "://" in url else None
            if known is not None:
                credentials.setdefault(host_of(url), known)
    return IndexSettings(
        indexes=tuple(dict.fromkeys(indexes)),
        find_links=tuple(
            dict.fromkeys(without_credentials(url) if "://" in url else url for t in preferred for url in t.find_links)
        ),
        first_index=preferred[0].first_index,
        offline=any(config.offline for config in preferred),
        pinned={name: index for config in reversed(preferred) for name, index in config.pinned},
        files={name: place for config in reversed(preferred) for name, place in config.files},
        credentials=credentials,
        proxy=next((config.proxy for config in preferred if config.proxy), None),
        certificates=next((config.certificates for config in preferred if config.certificates), None),
        trusted_hosts=frozenset(host.lower() for config in preferred for host in config.trusted_hosts),
        timeout=next((config.timeout for config in preferred if config.timeout), 15.0),
        retries=next((config.retries for config in preferred if config.retries is not None), 4),
    )


def host_of(url: str) -> str:
    """Host and port as credentials are kept by."""
    return without_credentials(url).partition("://")[2].partition("/")[0].lower()


def _ordered(preferred: Sequence[IndexConfig]) -> list[tuple[str, str, bool, bool]]:
    if any(config.no_index for config in preferred):
        return []
    name, default = next(
        ((config.default_name, config.default) for config in preferred if config.default), ("", PUBLIC_INDEX)
    )
    others = [index for config in preferred for index in config.indexes]
    main = (name, default, False, False)
    # uv asks its default last, pip its main one first; with pip's rules the order decides only between equal files.
    return [*others, main] if preferred[0].first_index else [main, *others]
