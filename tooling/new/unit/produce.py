"""From a template and answers to formatted files in memory: what `generate`, `update` and `rename` have in common.

produced = produce(workspace, folder, names, answers, kind="reward")
produced.files["areal/reward/digits.py"]      # formatted bytes; the repository was not touched
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ChecksFailedError, UsageError
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import version
from tooling.kit.change.plan import sha256
from tooling.kit.kind import PrepareRequest, Stage
from tooling.kit.receipts import Receipt, ReceiptFile, TemplateReference
from tooling.kit.template.formatting import check_files, format_files
from tooling.kit.template.manifest import load_manifest, resolve
from tooling.kit.template.questions import check_answers, load_questions, refuse_unasked
from tooling.kit.template.rendering import complete_answers, render, template_context
from tooling.kit.template.tree import hash_algorithm, tree_hash
from tooling.new.unit.pages import Page, load_page, refused_page

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from tooling.kit.kind import CheckResult, Manifest, Prepared, ResolvedManifest
    from tooling.kit.names import Names
    from tooling.kit.project import Settings
    from tooling.kit.template.kinds import KindSource
    from tooling.new.unit.context import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """A unit as its template makes it."""

    names: Names
    answers: Mapping[str, Any]
    """Complete, as JSON values."""
    settings: Settings
    files: Mapping[str, bytes]
    manifest: ResolvedManifest

    def receipt_files(self) -> dict[str, ReceiptFile]:
        """What a receipt says about the files."""
        return {
            entry.path: ReceiptFile(
                sha256(self.files[entry.path]), entry.purpose, entry.contract, entry.todo, entry.test
            )
            for entry in self.manifest.files
        }

    def receipt(self, kind: str, template: TemplateReference, *, register: bool) -> Receipt:
        """The receipt without entries: those are known once they are made."""
        return Receipt(
            kind=kind,
            names=self.names,
            generator=f"areal-new {version()}",
            template=template,
            answers=self.answers,
            package=self.settings.package,
            tests=self.settings.tests,
            register=register,
            symbols=self.manifest.symbols,
            files=self.receipt_files(),
        )


def produce(
    workspace: Workspace,
    folder: Path,
    names: Names,
    answers: Mapping[str, Any],
    *,
    kind: str,
    settings: Settings | None = None,
    page: Page | None = None,
    given: Collection[str] = (),
) -> Produced:
    """Render a template folder with the given answers and defaults, and format the result with the repository's ruff.

    `settings` are the repository's unless others are given. `given`: names of the answers that a user gave just now;
    those have to be asked for. When the page has a `finish` that gives further answers, the template is rendered again
    with them. Raises UsageError for answers or a template that cannot be used.
    """
    settings = settings or workspace.settings
    complete = complete_answers(folder, answers, names, settings, kind=kind)
    if given:
        refuse_unasked(load_questions(folder), given, {**template_context(names, settings, kind), **complete})
    files = format_files(workspace.root, render(folder, complete, names, settings))
    if page is not None and page.finish is not None:
        with _staged(files) as stage:
            more = page.finish(
                Stage(root=workspace.root, folder=stage, answers=complete, names=names, python=workspace.python)
            )
        if more:
            complete = complete_answers(folder, {**complete, **more}, names, settings, kind=kind)
            files = format_files(workspace.root, render(folder, complete, names, settings))
    context = {**template_context(names, settings, kind), **complete}
    manifest = resolve(load_manifest(folder), context, tuple(files))
    return Produced(names=names, answers=json_values(complete), settings=settings, files=files, manifest=manifest)


def prepare(
    workspace: Workspace,
    source: KindSource,
    manifest: Manifest,
    names: Names,
    answers: Mapping[str, Any],
    options: Mapping[str, str],
) -> tuple[Page, Prepared]:
    """The kind's page, and the answers it derives from options.

    Raises UsageError for options the kind does not have, for unknown given answers, and when options are given but the
    project's template may not run a page.
    """
    from tooling.kit.kind import Prepared

    known = [option.name for option in manifest.options]
    for name in options:
        if name not in known:
            fix = did_you_mean(name, known) or f"options of {source.name}: {', '.join(known) or 'none'}"
            raise UsageError(f"{source.name} has no option {name!r}", where=f"--{name}", fix=fix)
    refuse_unknown(source.folder, answers)
    refused = refused_page(source, manifest)
    if refused and options:
        raise UsageError(
            f"the page {refused} that --{next(iter(options))} needs is not run for a project's own template",
            where=os.fspath(source.folder),
            fix="ship the kind as a package with an entry point, or answer the questions instead",
        )
    page = load_page(source, manifest)
    if page.prepare is None:
        warning = (f"the page {refused} was not run: a project's own template is data",) if refused else ()
        return page, Prepared(warnings=warning)
    request = PrepareRequest(
        root=workspace.root, names=names, answers=answers, options=options, python=workspace.python
    )
    return page, page.prepare(request)


def refuse_unknown(folder: Path, answers: Mapping[str, Any]) -> None:
    """Raise UsageError for a given answer to no question: a page may add such answers, a user has mistyped a name."""
    questions = load_questions(folder)
    if answers.keys() - {question.name for question in questions}:
        check_answers(questions, answers)


def reference(workspace: Workspace, source: KindSource) -> TemplateReference:
    """Which template this is, free of machine paths."""
    folder = source.folder.resolve()
    inside = folder.is_relative_to(workspace.root)
    name = folder.relative_to(workspace.root).as_posix() if inside else folder.name
    return TemplateReference(source.origin, name, template_tree(workspace, source))


def template_tree(workspace: Workspace, source: KindSource) -> str:
    """Git's hash of a kind's template folder, as this repository would store it."""
    return tree_hash(source.folder, algorithm=hash_algorithm(workspace.repository))


def checked(workspace: Workspace, files: Mapping[str, bytes], what: str) -> tuple[CheckResult, ...]:
    """Results of the gates on generated files. Raises ChecksFailedError with all results when one failed."""
    if not files:
        return ()
    results = tuple(check_files(workspace.root, dict(files)))
    failed = [result for result in results if not result.ok]
    if failed:
        raise ChecksFailedError(
            f"{what} does not pass {', '.join(result.name for result in failed)}; nothing was written",
            fix="correct the template or the answers",
            checks=results,
        )
    return results


def json_values(answers: Mapping[str, Any]) -> dict[str, Any]:
    """The answers as they come back from a receipt. Raises UsageError for values JSON does not have."""
    try:
        values: dict[str, Any] = json.loads(json.dumps(dict(answers), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"an answer is no JSON value: {error}", fix="use texts, numbers, lists and tables") from error
    return values


@contextmanager
def _staged(files: Mapping[str, bytes]) -> Iterator[Path]:
    """A folder of its own with the files at their repository paths."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="areal-new-stage-") as folder:
        for path, content in files.items():
            target = Path(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        yield Path(folder)
