"""What every command begins with: the repository, its settings, and the pages that were named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.cli.git import find_repository
from tooling.documentation.compare.judge import Judge
from tooling.documentation.compare.links import Links
from tooling.documentation.compare.words import read_glossary
from tooling.documentation.history import History
from tooling.documentation.inference import Inference
from tooling.documentation.pages import chosen, read_tree
from tooling.documentation.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.cli.git import Repository
    from tooling.documentation.pages import Tree


@dataclass(frozen=True, slots=True)
class Context:
    """A repository as this command sees it."""

    repository: Repository
    tree: Tree
    """Only the pages that were named; all without any."""
    judge: Judge


def open_context(start: Path, names: Sequence[str], *, ask_history: bool = True) -> Context:
    """Reads settings and lists pages. Raises UsageError where there is no repository, no page, or no sense."""
    repository = find_repository(start)
    settings = read_settings(repository.root)
    whole = read_tree(repository.root, repository.files(), settings)
    tree = chosen(whole, names)
    history = History(repository.root) if ask_history else None
    inference = Inference(repository.root, history) if history is not None else None
    judge = Judge(tree, read_glossary(repository.root, settings.glossary), history, inference, Links(whole))
    return Context(repository, tree, judge)
