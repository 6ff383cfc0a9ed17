"""Read the configured package indexes: pip's and uv's files and environment variables."""

from __future__ import annotations

import configparser
import os
import re
import sys
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from tooling.cli.toml import table_in
from tooling.upgrade.sources.links import credentials_of, without_credentials

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


PUBLIC_INDEX = "https://pypi.org/simple"


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """A place that answers the Simple API."""

    url: str
    """In settings without credentials and trailing slash."""
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


@dataclass(slots=True, kw_only=True)
class IndexConfig:
    """What one tool's configuration says, URLs with credentials. Fields that it does not mention are None or empty."""

    default: PackageIndex | None = None
    indexes: list[PackageIndex] = field(default_factory=list)
    """Beside the default one, in order."""
    find_links: list[str] = field(default_factory=list)
    no_index: bool = False
    first_index: bool = False
    """Whether the first index that knows a package is the only one asked for it."""
    offline: bool = False
    pinned: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    credentials: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By the name of an index as variables spell it."""
    proxy: str | None = None
    certificates: str | None = None
    trusted_hosts: list[str] = field(default_factory=list)
    timeout: float | None = None
    retries: int | None = None


def combined(preferred: Sequence[IndexConfig]) -> IndexSettings:
    """Several tools' configurations as one, the preferred tool first."""
    default = next((config.default for config in preferred if config.default), PackageIndex(PUBLIC_INDEX))
    ordered = [index for config in preferred for index in config.indexes]
    # uv asks its default last, pip its main one first; with pip's rules the order decides only between equal files.
    ordered.insert(len(ordered) if preferred[0].first_index else 0, default)
    if any(config.no_index for config in preferred):
        ordered = []
    links = [url for config in preferred for url in config.find_links]
    by_name = {name: known for config in preferred for name, known in config.credentials.items()}
    credentials: dict[str, tuple[str, str]] = {}
    for index in [*ordered, *(PackageIndex(url) for url in links if "://" in url)]:
        if (known := by_name.get(re.sub(r"\W", "_", index.name).upper()) or credentials_of(index.url)) is not None:
            credentials.setdefault(host_of(index.url), known)
    indexes = (replace(index, url=without_credentials(index.url).rstrip("/")) for index in ordered)
    return IndexSettings(
        indexes=tuple(dict.fromkeys(indexes)),
        find_links=tuple(dict.fromkeys(without_credentials(url) if "://" in url else url for url in links)),
        first_index=preferred[0].first_index,
        offline=any(config.offline for config in preferred),
        pinned={name: index for config in reversed(preferred) for name, index in config.pinned.items()},
        files={name: place for config in reversed(preferred) for name, place in config.files.items()},
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


def _is_true(value: object) -> bool:
    """How configuration files and environments say yes."""
    return str(value).strip().lower() in {"1", "true", "yes", "on", "t", "y"}


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < 86_400 else None


_MOST_BYTES = 4 << 20


def _text(path: Path) -> str:
    try:
        if path.is_file() and path.stat().st_size <= _MOST_BYTES:
            return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        pass  # who complains about a damaged file is another tool
    return ""


# ----------------------------------------------------------------------------------------------------------------- pip


_SECTIONS = ("global", "download", "install")
"""Later ones win, as `[install]` does for `pip install`."""


def read_pip_config(environ: Mapping[str, str], project: Path | None = None) -> IndexConfig:
    """pip's settings for installing into the project's environment."""
    said: dict[str, str] = {}
    for path in _pip_files(environ, project):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(_text(path))
        except configparser.Error:
            continue
        for section in filter(parser.has_section, _SECTIONS):
            said.update(parser.items(section))
    said.update({name[4:]: value for name, value in environ.items() if name.startswith("PIP_") and value})
    options = {name.strip().lower().replace("_", "-").removeprefix("--"): value for name, value in said.items()}
    retries = options.get("retries", "").strip()
    return IndexConfig(
        default=PackageIndex(options["index-url"]) if options.get("index-url") else None,
        indexes=[PackageIndex(url) for url in options.get("extra-index-url", "").split()],
        find_links=options.get("find-links", "").split(),
        no_index=_is_true(options.get("no-index")),
        proxy=options.get("proxy") or None,
        certificates=options.get("cert") or environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE"),
        trusted_hosts=options.get("trusted-host", "").split(),
        timeout=_seconds(options.get("timeout") or options.get("default-timeout")),
        retries=min(int(retries), 20) if retries.isdecimal() else None,
    )


def _pip_files(environ: Mapping[str, str], project: Path | None) -> Iterator[Path]:
    """Yield configuration files, the weakest first."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return
    home = Path(environ.get("HOME") or Path.home())
    name = "pip.ini" if sys.platform == "win32" else "pip.conf"
    if sys.platform == "win32":
        roaming = Path(environ.get("APPDATA", home / "AppData/Roaming"))
        folders = [Path(environ.get("PROGRAMDATA", "C:/ProgramData")) / "pip", home / "pip", roaming / "pip"]
    else:
        shared = reversed((environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"))
        own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        mac = "Library/Application Support/pip"
        folders = [*(Path(folder) / "pip" for folder in shared), Path("/etc"), home / ".pip", home / mac, own / "pip"]
        folders = [Path("/") / mac, *folders] if sys.platform == "darwin" else folders
    yield from (folder / name for folder in folders)
    site = environ.get("VIRTUAL_ENV") or (str(project / ".venv") if project is not None else "")
    if site:
        yield Path(site) / name
    if named:
        yield Path(named)


# ------------------------------------------------------------------------------------------------------------------ uv


def uses_uv(project: Path) -> bool:
    """Whether the project is one of uv: it has a lock, a uv.toml or a `[tool.uv]` table."""
    if (project / "uv.lock").is_file() or (project / "uv.toml").is_file():
        return True
    return bool(table_in(_load(project / "pyproject.toml"), "tool", "uv"))


def read_uv_config(environ: Mapping[str, str], project: Path | None = None) -> IndexConfig:
    """uv's settings in a project."""
    tables = list(_tables(environ, project))
    found = IndexConfig(
        credentials={
            name: (environ.get(f"UV_INDEX_{name}_USERNAME", "__token__"), environ.get(f"UV_INDEX_{name}_PASSWORD", ""))
            for variable in environ
            for name in re.findall(r"^UV_INDEX_(.+)_(?:USERNAME|PASSWORD)$", variable)
        },
        certificates=environ.get("SSL_CERT_FILE"),
        trusted_hosts=environ.get("UV_INSECURE_HOST", "").split(),
        timeout=_seconds(environ.get("UV_HTTP_TIMEOUT")),
        no_index=_is_true(_first(tables, "no-index")),
        offline=_is_true(_first(tables, "offline")),
        first_index=_first(tables, "index-strategy") in (None, "first-index"),
    )
    for folder, table in tables:
        found.find_links += [_place(text, folder) for text in _texts(table.get("find-links"))]
        entries = table.get("index")
        for entry in entries if isinstance(entries, list) else []:
            if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
                continue
            name = entry["name"] if isinstance(entry.get("name"), str) else ""
            kind = (entry.get("explicit") is True, entry.get("format") == "flat")
            index = PackageIndex(_place(entry["url"], folder), name, *kind)
            if entry.get("default") is True:
                found.default = found.default or replace(index, explicit=False, flat=False)
            else:
                found.indexes.append(index)
        for place in (table, table_in(table, "pip")):
            found.indexes += [PackageIndex(_place(url, folder)) for url in _texts(place.get("extra-index-url"))]
            for url in _texts(place.get("index-url")):
                found.default = found.default or PackageIndex(_place(url, folder))
    if project is not None:
        found.pinned, found.files = _sources(project)
    return found


def _tables(environ: Mapping[str, str], project: Path | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """(folder that relative paths start at, table), the strongest first: what variables say, then files."""
    words = [(word, False) for word in f"{environ.get('UV_INDEX', '')} {environ.get('UV_EXTRA_INDEX_URL', '')}".split()]
    words += [(environ.get(name, "").strip(), True) for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")]
    said: dict[str, Any] = {
        "index": [{**_named(word), "default": is_default} for word, is_default in words if word],
        "find-links": environ.get("UV_FIND_LINKS", "").replace(",", "\n").split("\n"),
    }
    said["find-links"] = [link.strip() for link in said["find-links"] if link.strip()]
    for key in ("no-index", "offline", "index-strategy"):
        value = environ.get(f"UV_{key.upper().replace('-', '_')}", "")
        said |= {key: value} if value and (key == "index-strategy" or _is_true(value)) else {}
    yield Path(), said
    named = environ.get("UV_CONFIG_FILE", "")
    if named:
        yield Path(named).parent, _load(Path(named))
        return
    if _is_true(environ.get("UV_NO_CONFIG")):
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


def _named(word: str) -> dict[str, Any]:
    """Name and address of "name=url", or of an address alone."""
    name, equals, url = word.partition("=")
    return {"name": name, "url": url} if equals and not set("/:") & set(name) else {"url": word}


def _sources(project: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Indexes and files that `[tool.uv.sources]` names per distribution. A list with markers stands for its first
    entry; what comes from git is not looked at: a release is wanted, not a commit."""
    pinned: dict[str, str] = {}
    files: dict[str, str] = {}
    table = table_in(_load(project / "pyproject.toml"), "tool", "uv", "sources")
    for name, value in table.items():
        entry = value[0] if isinstance(value, list) and value else value
        if not isinstance(entry, dict):
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
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError:
        return {}
