"""Templates to files in memory: copier renders into a temporary folder, never into the repository.

    files = render(folder, answers, names, settings)       # {"areal/reward/digits.py": b"...", ...}, sorted

A template is data, from whoever wrote it: nothing of it is executed (no tasks, migrations or extensions), it reads no
files but its own, and renders the same bytes for the same answers at any time on any machine. How long it takes and
how much memory is not limited: loops within loops run until they end, or until somebody interrupts. Copier sees a copy
whose questions are answered already (`tooling.kit.template.questions`). Formatting is a step of its own
(`tooling.kit.template.formatting`).
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import UsageError
from tooling.kit.change.plan import safe_path
from tooling.kit.template import scan as template_scan
from tooling.kit.template.expressions import rendering_errors
from tooling.kit.template.manifest import load_manifest
from tooling.kit.template.questions import FILE, check_answers, load_configuration, load_questions
from tooling.kit.template.tree import template_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tooling.kit.names import Names
    from tooling.kit.project import Settings

SUFFIX = template_scan.SUFFIX
_SETTINGS = frozenset({"_envops", "_exclude", "_min_copier_version", "_subdirectory", "_templates_suffix"})
_DANGEROUS = frozenset({"_external_data", "_jinja_extensions", "_migrations", "_tasks"})


def template_context(names: Names, settings: Settings, kind: str) -> dict[str, str]:
    """What every template and manifest knows besides answers: the names, package, package_path, tests, kind."""
    place = {"package": settings.package, "package_path": settings.package_path, "tests": settings.tests}
    return {**names.as_data(), **place, "kind": kind}


def complete_answers(
    folder: Path, given: Mapping[str, Any], names: Names, settings: Settings, *, kind: str | None = None
) -> dict[str, Any]:
    """All answers of a template: those given, checked, and defaults for the others. What is given beyond the template's
    questions (by a generator page) is kept as it is. Raises UsageError as `questions.check_answers`."""
    questions = load_questions(folder)
    known = {question.name for question in questions}
    context = template_context(names, settings, kind or load_manifest(folder).name)
    further = {name: given[name] for name in given if name not in known}
    for name in further:
        if name in context:
            raise UsageError("is a name that every template has already", where=name, fix="rename the answer")
    asked = {name: given[name] for name in given if name in known}
    return {**check_answers(questions, asked, {**further, **context}), **further}


def render(
    folder: Path, answers: Mapping[str, Any], names: Names, settings: Settings, *, kind: str | None = None
) -> dict[str, bytes]:
    """What the template makes of the answers: content by repository path, sorted. Files whose name renders empty are
    left out; line endings are those of the template file; executable bits are not kept.

    answers: completed by defaults; further ones that are no questions are passed on. kind: the manifest's name when
    None. Raises UsageError naming template file and line for whatever the template does wrong.
    """
    configuration = _configuration(folder)
    sources = template_files(folder)
    _scan_sources(folder, sources, configuration["_subdirectory"])
    kind = kind or load_manifest(folder).name
    complete = complete_answers(folder, answers, names, settings, kind=kind)
    data = {**template_context(names, settings, kind), **complete}
    return _render_copy(folder, sources, configuration, data)


# ---------------------------------------------------------------------------------------------------------- template


def _configuration(folder: Path) -> dict[str, Any]:
    """Copier's settings of the template, as the copy will have them."""
    given = {key: value for key, value in load_configuration(folder).items() if key.startswith("_")}
    where = os.fspath(folder / FILE)
    for key in given:
        if key in _DANGEROUS:
            raise UsageError(f"`{key}` runs or reads what is no data", where=where, fix="templates are data; remove it")
        if key not in _SETTINGS:
            raise UsageError(f"`{key}` is not supported", where=where, fix=f"supported: {', '.join(sorted(_SETTINGS))}")
    if given.get("_templates_suffix", SUFFIX) != SUFFIX:
        raise UsageError(f"`_templates_suffix` has to be {SUFFIX!r}", where=where, fix="rename the template's files")
    below = given.get("_subdirectory")
    if not isinstance(below, str) or "{" in below or not (folder / safe_path(below)).is_dir():
        message = f"`_subdirectory` is {below!r}, expected a folder of the template"
        raise UsageError(message, where=where, fix="write _subdirectory: template, and put the files there")
    _check_excluded(given.get("_exclude", []), where)
    return {**given, "_subdirectory": safe_path(below), "_templates_suffix": SUFFIX, "_envops": _envops(given, where)}


def _check_excluded(patterns: Any, where: str) -> None:
    """Patterns are templates too: copier renders them."""
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise UsageError("`_exclude` is no list of texts", where=where, fix="list patterns as in .gitignore")
    for pattern in patterns:
        template_scan.scan(pattern, where=f"{where}: _exclude")


def _envops(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    options = given.get("_envops", {})
    allowed = {"keep_trailing_newline", "lstrip_blocks", "trim_blocks", "undefined"}
    if not isinstance(options, dict) or not options.keys() <= allowed:
        raise UsageError(
            "`_envops` sets what is not supported", where=where, fix=f"keep to {', '.join(sorted(allowed))}"
        )
    return {"keep_trailing_newline": True, **options, "undefined": "jinja2.StrictUndefined"}


def _scan_sources(folder: Path, sources: Mapping[str, Path], below: str) -> None:
    for path, source in sources.items():
        where = os.fspath(folder / path)
        if path in {"copier.yaml", "copier.YAML", "copier.YML"}:
            raise UsageError(f"stands beside {FILE}", where=where, fix="keep one of them")
        if path.startswith(f"{below}/"):
            template_scan.scan(path, where=where)
        if path.endswith(SUFFIX):
            template_scan.scan(_text(source, where), where=where)


def _text(source: Path, where: str) -> str:
    try:
        return source.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        fix = f"save it as UTF-8, or drop {SUFFIX} from its name so that it is copied as it is"
        raise UsageError(f"is not UTF-8 at byte {error.start}", where=where, fix=fix) from error


# ---------------------------------------------------------------------------------------------------------- copier


def _render_copy(
    folder: Path, sources: Mapping[str, Path], configuration: Mapping[str, Any], data: Mapping[str, Any]
) -> dict[str, bytes]:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="areal-new-", ignore_cleanup_errors=True) as stage:
        copy, output = Path(stage, "template").resolve(), Path(stage, "output").resolve()
        output.mkdir()
        _copy_template(sources, configuration, copy)
        with _mistakes_of(folder, copy), _no_programs(Path(stage, "no-programs")):
            _run_copier(copy, output, data)
        return _collect(output)


def _copy_template(sources: Mapping[str, Path], configuration: Mapping[str, Any], copy: Path) -> None:
    """The template as copier gets it: never inside a git repository, and with no question left to ask."""
    import yaml

    for path, source in sources.items():
        target = copy / path
        target.parent.mkdir(parents=True, exist_ok=True)
        content = source.read_bytes()
        target.write_bytes(_keep_line_endings(content) if path.endswith(SUFFIX) else content)
    (copy / FILE).write_text(yaml.safe_dump(dict(configuration)), encoding="utf-8")


def _keep_line_endings(content: bytes) -> bytes:
    """Jinja ends every line with a bare newline; a file that has CRLF throughout is told to convert its output."""
    lines = content.count(b"\n")
    if not lines or content.count(b"\r\n") != lines or re.search(rb"{%[-+]?\s*extends\b", content):
        return content
    return b'{% filter replace("\\n", "\\r\\n") +%}' + content + b"{%+ endfilter %}"


def _run_copier(copy: Path, output: Path, data: Mapping[str, Any]) -> None:
    from copier import Settings as UserSettings
    from copier import run_copy

    run_copy(
        os.fspath(copy),
        output,
        data=dict(data),
        settings=UserSettings(),  # not the settings.yml of whoever runs this
        defaults=True,
        overwrite=True,
        quiet=True,
        unsafe=False,
        skip_tasks=True,
    )


@contextmanager
def _no_programs(nowhere: Path) -> Iterator[None]:
    """Copier asks git about the template and about each file it writes. Neither is in a repository, and inside a git
    hook (GIT_DIR is set) git would answer for the wrong one; without git copier knows that there is nothing to ask."""
    from plumbum import local

    with local.env(PATH=os.fspath(nowhere)):
        yield


@contextmanager
def _mistakes_of(folder: Path, copy: Path) -> Iterator[None]:
    """Turns what a faulty template raises into a UsageError that names the template's own file and line."""
    from copier.errors import CopierError

    mistakes: tuple[type[Exception], ...] = (CopierError, OSError, *rendering_errors())
    try:
        yield
    except mistakes as error:
        message = str(error).replace(f"{copy}{os.sep}", "").replace(os.fspath(copy), os.fspath(folder))
        where = _template_line(error, folder, copy)
        raise UsageError(f"cannot be rendered: {message}", where=where, fix="correct the template") from error


def _template_line(error: BaseException, folder: Path, copy: Path) -> str:
    """ "folder/file:line" of the innermost template that was being rendered; the folder when it was none."""
    where, trace = os.fspath(folder), error.__traceback__
    while trace is not None:
        source = Path(trace.tb_frame.f_code.co_filename)
        if source.is_relative_to(copy):
            where = f"{folder / source.relative_to(copy)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where


def _collect(output: Path) -> dict[str, bytes]:
    paths = sorted(path for path in output.rglob("*") if path.is_symlink() or path.is_file())
    return {safe_path(path.relative_to(output).as_posix()): path.read_bytes() for path in paths}
