"""Generator pages: the Python that a kind may add to its template, for answers no question can give.

A page is a module with `prepare(PrepareRequest) -> Prepared` and maybe `finish(Stage) -> Mapping | None`.
Built-in templates and installed packages have pages. A project's own template folder is data: a page it names is not
run, unless the folder is byte for byte a built-in template (a clone or work tree of this repository).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tooling.kit.kind import Manifest, Prepared, PrepareRequest, Stage
    from tooling.kit.template.kinds import KindSource


@dataclass(frozen=True, slots=True)
class Page:
    """The functions of one generator page."""

    prepare: Callable[[PrepareRequest], Prepared] | None = None
    finish: Callable[[Stage], Mapping[str, Any] | None] | None = None


def load_page(source: KindSource, manifest: Manifest) -> Page:
    """The page of a kind; an empty one when it has none or may not have one. Raises UsageError when it cannot be
    imported."""
    module = source.prepare or manifest.generator
    if not module or not _trusted(source):
        return Page()
    import importlib

    try:
        page = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise UsageError(
            f"the generator page {module!r} does not exist", where=f"{source.folder}/template.toml", fix="correct it"
        ) from error
    return Page(getattr(page, "prepare", None), getattr(page, "finish", None))


def refused_page(source: KindSource, manifest: Manifest) -> str:
    """Name of the page that a project's template asks for and does not get; "" when there is none."""
    return manifest.generator if manifest.generator and not _trusted(source) else ""


def _trusted(source: KindSource) -> bool:
    if source.origin != "project":
        return True
    from tooling.kit.template.kinds import built_in_folder
    from tooling.kit.template.tree import tree_hash

    original = built_in_folder() / source.folder.name
    return original.is_dir() and tree_hash(original) == tree_hash(source.folder)
