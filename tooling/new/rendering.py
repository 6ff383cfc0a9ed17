"""Renders a unit in memory: generator page, template, formatting, gates; shared by `generate`, `update` and `rename`.

    unit = render_unit(workspace, folder, names, answers, kind="reward")
    unit.files["areal/reward/digits.py"]      # formatted bytes; the repository was not touched

A generator page is the Python that a kind may add to its template, for answers that no question can give: a module with
`prepare(change) -> Mapping` (further answers) and maybe `finish(change, answers, folder) -> Mapping | None`. Built-in
templates and installed packages have pages. A project's own template folder is data: a page it names is not run, unless
the folder is byte for byte a built-in template (a clone or work tree of this repository).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ChecksFailedError, UsageError
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import version
from tooling.kit.change.plan import sha256
from tooling.kit.receipts import Receipt, ReceiptFile, TemplateReference
from tooling.kit.template.kinds import built_in_folder
from tooling.kit.template.manifest import load_manifest, resolve
from tooling.kit.template.questions import check_answers, load_questions, refuse_unasked
from tooling.kit.template.rendering import check_files, complete_answers, format_files, render, template_context
from tooling.kit.template.tree import hash_algorithm, tree_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tooling.kit.kind import ResolvedManifest
    from tooling.kit.names import Names
    from tooling.kit.template.kinds import KindSource, ProjectSettings
    from tooling.new.change import Change
    from tooling.new.workspace import Workspace

    Finish = Callable[[Mapping[str, Any], Path], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedUnit:
    """A unit as its template makes it."""

    names: Names
    answers: Mapping[str, Any]
    """Complete, as JSON values."""
    settings: ProjectSettings
    files: Mapping[str, bytes]
    manifest: ResolvedManifest

    def receipt_files(self) -> dict[str, ReceiptFile]:
        """Return what a receipt says about the files."""
        return {
            entry.path: ReceiptFile(
                sha256(self.files[entry.path]), entry.purpose, entry.contract, entry.todo, entry.test
            )
            for entry in self.manifest.files
        }

    def receipt(self, kind: str, template: TemplateReference, *, register: bool) -> Receipt:
        """Return the receipt without entries: those are known once they are made."""
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


def render_unit(
    workspace: Workspace,
    folder: Path,
    names: Names,
    answers: Mapping[str, Any],
    *,
    kind: str,
    settings: ProjectSettings | None = None,
    finish: Finish | None = None,
    given: Collection[str] = (),
) -> RenderedUnit:
    """Render a template folder with the given answers and defaults, and format the result with the repository's ruff.

    `settings` are the repository's unless others are given. `given`: names of the answers that a user gave just now;
    those have to be asked for. When `finish` gives further answers for the files, the template is rendered again with
    them. Raises UsageError for answers or a template that cannot be used.
    """
    settings = settings or workspace.settings
    complete = complete_answers(folder, answers, names, settings, kind=kind)
    context = template_context(names, settings, kind)
    if given:
        refuse_unasked(load_questions(folder), given, {**context, **complete})
    files = format_files(workspace.root, render(folder, complete, names, settings))
    more = _finished(finish, complete, files) if finish is not None else None
    if more:
        complete = complete_answers(folder, {**complete, **more}, names, settings, kind=kind)
        files = format_files(workspace.root, render(folder, complete, names, settings))
    manifest = resolve(load_manifest(folder), {**context, **complete}, tuple(files))
    return RenderedUnit(names=names, answers=json_values(complete), settings=settings, files=files, manifest=manifest)


def _finished(finish: Finish, answers: Mapping[str, Any], files: Mapping[str, bytes]) -> Mapping[str, Any] | None:
    """Show the page the files, in a folder of their own at their repository paths."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="areal-new-stage-") as folder:
        for path, content in files.items():
            target = Path(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        return finish(answers, Path(folder))


def prepare(workspace: Workspace, source: KindSource, change: Change) -> tuple[Mapping[str, Any], Finish | None]:
    """Run the kind's page: the answers that it derives, and how it finishes the rendered files. The page may add
    warnings, next steps and findings to the change.

    Raises UsageError for options the kind does not have, for unknown given answers, for a page that cannot be imported,
    and when options are given but the project's template may not run a page.
    """
    manifest, request = load_manifest(source.folder), change.request
    known = [option.name for option in manifest.options]
    for name in request.options:
        if name not in known:
            fix = did_you_mean(name, known) or f"options of {source.name}: {', '.join(known) or 'none'}"
            raise UsageError(f"{source.name} has no option {name!r}", where=f"--{name}", fix=fix)
    refuse_unknown(source.folder, request.answers)
    module = source.prepare or manifest.generator
    if module and not _is_trusted(source):
        if request.options:
            raise UsageError(
                f"the page {module} that --{next(iter(request.options))} needs is not run for a project's own template",
                where=os.fspath(source.folder),
                fix="ship the kind as a package with an entry point, or answer the questions instead",
            )
        change.warnings.append(f"the page {module} was not run: a project's own template is data")
        return {}, None
    if not module:
        return {}, None
    import importlib

    try:
        page = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        where = f"{source.folder}/template.toml"
        raise UsageError(
            f"the generator page {module!r} does not exist", where=where, fix="name an existing module"
        ) from error
    answers = page.prepare(change) if hasattr(page, "prepare") else {}
    if not hasattr(page, "finish"):
        return answers, None
    return answers, lambda complete, folder: page.finish(change, complete, folder)


def _is_trusted(source: KindSource) -> bool:
    if source.origin != "project":
        return True
    original = built_in_folder() / source.folder.name
    return original.is_dir() and tree_hash(original) == tree_hash(source.folder)


def refuse_unknown(folder: Path, answers: Mapping[str, Any]) -> None:
    """Raise UsageError for a given answer to no question: a page may add such answers, a user has mistyped a name."""
    questions = load_questions(folder)
    if answers.keys() - {question.name for question in questions}:
        check_answers(questions, answers)


def reference(workspace: Workspace, source: KindSource) -> TemplateReference:
    """Say which template this is, free of machine paths."""
    folder = source.folder.resolve()
    inside = folder.is_relative_to(workspace.root)
    name = folder.relative_to(workspace.root).as_posix() if inside else folder.name
    return TemplateReference(source.origin, name, template_tree(workspace, source))


def template_tree(workspace: Workspace, source: KindSource) -> str:
    """Return git's hash of a kind's template folder, as this repository would store it."""
    return tree_hash(source.folder, algorithm=hash_algorithm(workspace.repository))


def check_rendered(change: Change, files: Mapping[str, bytes], what: str) -> None:
    """Add the results of the gates on generated files. Raises ChecksFailedError with all results when one failed."""
    results = check_files(change.root, dict(files)) if files else []
    failed = [result.name for result in results if not result.ok]
    if failed:
        raise ChecksFailedError(
            f"{what} does not pass {', '.join(failed)}; nothing was written",
            fix="correct the template or the answers",
            checks=results,
        )
    change.checks += results


def json_values(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answers as they come back from a receipt. Raises UsageError for values JSON does not have."""
    try:
        values: dict[str, Any] = json.loads(json.dumps(dict(answers), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"an answer is not a JSON value: {error}", fix="use texts, numbers, lists and tables"
        ) from error
    return values
