"""What each module of a release imports by name, by pattern and without parsing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.upgrade.upstream.scan import module_name

if TYPE_CHECKING:
    from tooling.upgrade.upstream.store import Store

_FROM = re.compile(rb"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|(?:\\\n|[^\n#;])+)", re.MULTILINE)
_NAME = re.compile(rb"([A-Za-z_]\w*)(?:[ \t]+as[ \t]+\w+)?")
_COMMENT = re.compile(rb"#[^\n]*|\\\n")


def imports_of(store: Store) -> dict[str, dict[str, list[str]]]:
    """Importing module -> module -> names, of each `from a import b`."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in store.release.files():
        importer, is_package = module_name(path)
        package = importer if is_package else importer.rpartition(".")[0]
        for match in _FROM.finditer(store.release.read(path)):
            module = _absolute(match[1].decode(), package)
            if module:
                names = _COMMENT.sub(b" ", match[2]).strip(b"() \t\n")
                taken = found.setdefault(importer, {}).setdefault(module, [])
                taken.extend(name.decode() for name in _NAME.findall(names))
    return found


def _absolute(module: str, package: str) -> str:
    level = len(module) - len(module.lstrip("."))
    if not level:
        return module
    parts = package.split(".")
    if level > len(parts):
        return ""
    base = ".".join(parts[: len(parts) - level + 1])
    rest = module[level:]
    return f"{base}.{rest}" if rest else base
