"""Reads what a project says about its translated documents: `[tool.areal.docs]` of pyproject.toml, every key optional.

[tool.areal.docs]
source = "docs/en"                   # folder of the pages that are written first
translation = "docs/zh"              # folder of their translations; may lie inside the source's folder
exclude = ["docs/en/reference/**"]   # pages that are not translated on purpose: generated ones, for example
complete = true                      # every page of the source has to have its translation
glossary = "docs/glossary.md"        # a table of terms: source, translation, words that must not be used for it
generated = ["toc"]                  # regions that programs write: `<!-- toc -->` to `<!-- /toc -->`; "areal-new:*"
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.cli.settings import Settings, Strings, Text, read_settings, section
from tooling.kit.change.plan import safe_path

if TYPE_CHECKING:
    from pathlib import Path

SECTION: Final = section("docs")


class DocsSettings(Settings):
    """A project's settings; folders and files are relative to the repository root."""

    source: Text = "docs/en"
    translation: Text = "docs/zh"
    exclude: Strings = ()
    complete: bool = True
    glossary: str = ""
    generated: Strings = ()

    def excluded(self, path: str) -> bool:
        """Whether a page of the source has no translation on purpose."""
        return any(fnmatchcase(path, pattern) for pattern in self.exclude)


def read_docs_settings(root: Path) -> DocsSettings:
    """Read the settings of the repository at `root`. Raises UsageError for values that make no sense."""
    settings = read_settings(DocsSettings, root, "docs")
    folders = {
        name: safe_path(value) for name in ("source", "translation", "glossary") if (value := getattr(settings, name))
    }
    if folders["source"] == folders["translation"]:
        raise UsageError("source and translation are the same folder", where=SECTION, fix="name two")
    return settings.model_copy(update=folders)
