"""Renders templates to files in memory, and puts them through the repository's gates: syntax, ruff format and check.

    files = render(folder, answers, names, settings)       # {"areal/reward/digits.py": b"...", ...}, sorted
    files = format_files(root, files)            # Python files as `ruff format` leaves them, imports sorted
    results = check_files(root, files)           # [CheckResult("syntax", ...), CheckResult("ruff-format", ...), ...]
    worse = check_edited(root, {path: (b"old", b"new")})    # checks that an edit of an existing file would break

A template is data, from whoever wrote it: nothing of it is executed (no tasks, migrations or extensions), it reads no
files but its own, and renders the same bytes for the same answers at any time on any machine. How long it takes and
how much memory is not limited: loops within loops run until they end, or until somebody interrupts. Copier renders into
a temporary folder, from a copy whose questions are answered already (`tooling.kit.template.questions`).

Ruff runs in a temporary folder that holds the files at their repository paths, the repository's ruff configuration, and
links to the modules around them, so that it judges as it would after writing. Nothing is written to the work tree.
Files other than Python pass through.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ToolError, UsageError
from tooling.cli.toml import TOMLError, parse_toml
from tooling.kit.change.plan import safe_path
from tooling.kit.kind import CheckResult
from tooling.kit.template.expressions import SUFFIX, rendering_errors, scan
from tooling.kit.template.manifest import load_manifest
from tooling.kit.template.questions import FILE, check_answers, load_configuration, load_questions
from tooling.kit.template.tree import template_files

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from tooling.kit.names import Names
    from tooling.kit.template.kinds import ProjectSettings


_CONFIGURATIONS = (".ruff.toml", "ruff.toml", "pyproject.toml")
_SUFFIXES = (".py", ".pyi")
_TIMEOUT_SECONDS = 60
_IMPORT = re.compile(r"^[ \t]*(?:from|import)\b((?:[^\n(]|\\\n)*(?:\([^)]*\))?)", re.MULTILINE)
_WORD = re.compile(r"\w+")
_MAX_DETAIL = 4000
"""Characters of ruff's report that are worth showing."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    code: int
    output: str
    seconds: float


def format_files(root: Path, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files as they are to be written, sorted by path.

    Python files that do not parse are left as they are: `check_files` says what is wrong with them. Raises UsageError
    when the ruff configuration cannot be used.
    """
    sound = {path: content for path, content in _python(files).items() if not _syntax_error(path, content)}
    formatted: dict[str, bytes] = {}
    if sound:
        with _stage(root, sound) as stage:
            # The place of an import depends on the unit's name; only where the project sorts imports at all.
            _must(_ruff(stage, ["check", "--fix-only", "--fixable", "I001", "--quiet"], sound))
            _must(_ruff(stage, ["format", "--quiet"], sound))
            formatted = {path: (stage / path).read_bytes() for path in sound}
    return {path: formatted.get(path, files[path]) for path in sorted(files)}


def check_files(root: Path, files: Mapping[str, bytes]) -> list[CheckResult]:
    """Check that the Python files among `files` parse, are formatted, and pass `ruff check`; [] when there are none.

    Ruff is not asked about files that do not parse. Raises UsageError when its configuration cannot be used.
    """
    python = _python(files)
    if not python:
        return []
    started = time.perf_counter()
    errors = [error for path, content in python.items() if (error := _syntax_error(path, content))]
    syntax = CheckResult("syntax", not errors, time.perf_counter() - started, "\n".join(errors))
    if errors:
        return [syntax]
    with _stage(root, python) as stage:
        layout = _ruff(stage, ["format", "--check"], python)
        rules = _ruff(stage, ["check", "--no-fix", "--quiet", "--output-format", "concise"], python)
    return [syntax, _result("ruff-format", layout), _result("ruff-check", rules)]


def check_edited(root: Path, edits: Mapping[str, tuple[bytes, bytes]]) -> list[CheckResult]:
    """Return checks that existing files, given as (before, after), would fail and passed before; [] without any.

    What a file failed all along is not the fault of the edit. Raises UsageError as `check_files`.
    """
    broken = [
        result for result in check_files(root, {path: after for path, (_, after) in edits.items()}) if not result.ok
    ]
    if not broken:
        return []
    worse: list[CheckResult] = []
    for path, (before, after) in edits.items():  # one by one: another file's old failures hide nothing
        failed = {result.name for result in check_files(root, {path: before}) if not result.ok}
        worse += [item for item in check_files(root, {path: after}) if not item.ok and item.name not in failed]
    return worse


def _python(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {safe_path(path): files[path] for path in sorted(files) if path.endswith(_SUFFIXES)}


def _syntax_error(path: str, content: bytes) -> str:
    """Return "path:line: what is wrong", or "" for source that parses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ruff says it better
            compile(content, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{path}:{error.lineno or 1}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{path}:1: {str(error) or 'nested too deeply'}"
    return ""


# ---------------------------------------------------------------------------------------------------------- the stage


@contextmanager
def _stage(root: Path, files: Mapping[str, bytes]) -> Iterator[Path]:
    """Yield a temporary folder that looks to ruff like the repository around these files."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="areal-new-", ignore_cleanup_errors=True) as temporary:
        stage = Path(temporary).resolve()
        folders = sorted({"", *(folder.as_posix() for path in files for folder in PurePosixPath(path).parents[:-1])})
        imported = set(_imported_words(files))
        for folder in folders:
            (stage / folder).mkdir(parents=True, exist_ok=True)
            for name in _CONFIGURATIONS:
                imported |= _copy_configuration(root, stage, PurePosixPath(folder, name))
        for folder in folders:
            _link_neighbours(root / folder, stage / folder, imported if folder else None)
        if not any(_configures_ruff(stage / name) for name in _CONFIGURATIONS):
            (stage / "ruff.toml").write_bytes(b"")  # else ruff would look above the folder, and in the home folder
        for path, content in files.items():
            (stage / path).unlink(missing_ok=True)  # a link to the file as it is now
            (stage / path).write_bytes(content)
        yield stage


def _imported_words(files: Mapping[str, bytes]) -> frozenset[str]:
    """Return every word of the files' import statements, and what makes a folder a package."""
    statements = (
        match[1] for content in files.values() for match in _IMPORT.finditer(content.decode(errors="replace"))
    )
    return frozenset({"__init__", *(word for statement in statements for word in _WORD.findall(statement))})


def _link_neighbours(place: Path, stage: Path, wanted: Container[str] | None) -> None:
    """Make modules around the files visible: they decide which imports are the repository's own, and whether a folder
    is a package. Ruff is never asked about them. Configurations are copied instead: ruff goes by their place.

    `wanted` are the names that matter, None for all: a link costs as much as a small file.
    """
    if not place.is_dir():
        return
    for entry in os.scandir(place):
        is_module = entry.name.endswith(_SUFFIXES)
        name = entry.name.partition(".")[0]
        if not is_module and (entry.name.startswith(".") or not entry.is_dir()):
            continue
        if (wanted is None or name in wanted) and not (stage / entry.name).exists():
            (stage / entry.name).symlink_to(entry.path)


def _copy_configuration(root: Path, stage: Path, path: PurePosixPath) -> set[str]:
    """Copy a configuration file, and those of the repository that it extends.

    Returns the names of the folders that they call sources of first-party modules.
    """
    source, target = root / path, stage / path
    if target.exists() or not source.is_file():
        return set()
    content = source.read_bytes()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    table = _ruff_table(content, path.name)
    sources, extended = table.get("src"), table.get("extend")
    places = [place for place in sources if isinstance(place, str)] if isinstance(sources, list) else []
    folders = {part for place in places for part in PurePosixPath(place).parts}
    if isinstance(extended, str):
        inside = os.path.normpath(path.parent / extended)
        if not os.path.isabs(extended) and not inside.startswith(".."):
            folders |= _copy_configuration(root, stage, PurePosixPath(Path(inside).as_posix()))
    return folders


def _ruff_table(content: bytes, name: str) -> Mapping[str, Any]:
    try:
        table = parse_toml(content)
    except TOMLError:
        return {}  # ruff says what is wrong with it
    for key in ("tool", "ruff") if name == "pyproject.toml" else ():
        table = table.get(key, {})
        if not isinstance(table, dict):
            return {}
    return table


def _configures_ruff(path: Path) -> bool:
    if not path.is_file():
        return False
    return path.name != "pyproject.toml" or bool(_ruff_table(path.read_bytes(), path.name))


# ---------------------------------------------------------------------------------------------------------- ruff


def _ruff(stage: Path, command: list[str], files: Mapping[str, bytes]) -> _Outcome:
    """Run ruff on exactly these files: without any it would take the whole folder."""
    import subprocess

    if not files:
        raise ValueError("ruff needs an explicit list of files")
    full = [_ruff_program(), command[0], "--no-cache", *command[1:], "--", *sorted(files)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RUFF_", "FORCE_COLOR"))}
    environment["NO_COLOR"] = "1"
    started = time.perf_counter()
    try:
        done = subprocess.run(
            full,
            cwd=stage,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"ruff could not be run: {error}", where=full[0], fix="reinstall ruff") from error
    outcome = _Outcome(done.returncode, done.stdout.decode(errors="replace"), time.perf_counter() - started)
    if outcome.code not in {0, 1}:
        complaint = done.stderr.decode(errors="replace").strip().replace(f"{stage}{os.sep}", "")
        raise UsageError(f"ruff refuses to work: {complaint}", where="ruff", fix="correct its configuration")
    return outcome


def _ruff_program() -> str:
    """Return the ruff that belongs to this interpreter, else the first on PATH."""
    try:
        from ruff import find_ruff_bin  # type: ignore[import-untyped]  # ruff publishes no types

        return str(find_ruff_bin())
    except (ImportError, FileNotFoundError):
        from shutil import which

        found = which("ruff")
        if found is None:
            raise UsageError(
                "the `ruff` program was not found", fix="install ruff: generated code is checked"
            ) from None
        return found


def _must(outcome: _Outcome) -> None:
    if outcome.code != 0:
        raise ToolError(f"ruff failed on sound files: {outcome.output.strip()}", where="ruff", fix="report this")


def _result(name: str, outcome: _Outcome) -> CheckResult:
    detail = outcome.output.strip()
    if len(detail) > _MAX_DETAIL:
        detail = f"{detail[:_MAX_DETAIL]} ... ({len(detail) - _MAX_DETAIL} more characters)"
    return CheckResult(name, outcome.code == 0, outcome.seconds, detail if outcome.code else "")


_SETTINGS = frozenset({"_envops", "_exclude", "_min_copier_version", "_subdirectory", "_templates_suffix"})
_ENVOPS = frozenset({"keep_trailing_newline", "lstrip_blocks", "trim_blocks", "undefined"})
_DANGEROUS = frozenset({"_external_data", "_jinja_extensions", "_migrations", "_tasks"})


def template_context(names: Names, settings: ProjectSettings, kind: str) -> dict[str, str]:
    """Return what every template and manifest knows besides answers: the names, package, package_path, tests, kind."""
    place = {"package": settings.package, "package_path": settings.package_path, "tests": settings.tests}
    return {**names.as_data(), **place, "kind": kind}


def complete_answers(
    folder: Path, given: Mapping[str, Any], names: Names, settings: ProjectSettings, *, kind: str | None = None
) -> dict[str, Any]:
    """Return all answers of a template: those given, checked, and defaults for the others.

    What is given beyond the template's questions (by a generator page) is kept as it is. Raises UsageError as
    `questions.check_answers`.
    """
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
    folder: Path, answers: Mapping[str, Any], names: Names, settings: ProjectSettings, *, kind: str | None = None
) -> dict[str, bytes]:
    """Return what the template makes of the answers: content by repository path, sorted.

    Files whose name renders empty are left out; line endings are those of the template file; executable bits are not
    kept.

    answers: completed by defaults; further ones that are not questions are passed on. kind: the manifest's name when
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
    """Return copier's settings of the template, as the copy will have them."""
    given = {key: value for key, value in load_configuration(folder).items() if key.startswith("_")}
    where = os.fspath(folder / FILE)
    for key in given:
        if key in _DANGEROUS:
            raise UsageError(
                f"`{key}` runs or reads what is not data", where=where, fix="templates are data; remove it"
            )
        if key not in _SETTINGS:
            raise UsageError(f"`{key}` is not supported", where=where, fix=f"supported: {', '.join(sorted(_SETTINGS))}")
    if given.get("_templates_suffix", SUFFIX) != SUFFIX:
        raise UsageError(f"`_templates_suffix` has to be {SUFFIX!r}", where=where, fix="rename the template's files")
    below = given.get("_subdirectory")
    if not isinstance(below, str) or "{" in below or not (folder / safe_path(below)).is_dir():
        message = f"`_subdirectory` is {below!r}, expected a folder of the template"
        raise UsageError(message, where=where, fix="write _subdirectory: template, and put the files there")
    patterns, options = given.get("_exclude", []), given.get("_envops", {})
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise UsageError("`_exclude` is not a list of texts", where=where, fix="list patterns as in .gitignore")
    for pattern in patterns:  # copier renders them too
        scan(pattern, where=f"{where}: _exclude")
    if not isinstance(options, dict) or not options.keys() <= _ENVOPS:
        fix = f"keep to {', '.join(sorted(_ENVOPS))}"
        raise UsageError("`_envops` sets what is not supported", where=where, fix=fix)
    options = {"keep_trailing_newline": True, **options, "undefined": "jinja2.StrictUndefined"}
    return {**given, "_subdirectory": safe_path(below), "_templates_suffix": SUFFIX, "_envops": options}


def _scan_sources(folder: Path, sources: Mapping[str, Path], below: str) -> None:
    for path, source in sources.items():
        where = os.fspath(folder / path)
        if path in {"copier.yaml", "copier.YAML", "copier.YML"}:
            raise UsageError(f"is there besides {FILE}", where=where, fix="keep one of them")
        if path.startswith(f"{below}/"):
            scan(path, where=where)
        if path.endswith(SUFFIX):
            try:
                text = source.read_bytes().decode("utf-8")
            except UnicodeDecodeError as error:
                fix = f"save it as UTF-8, or drop {SUFFIX} from its name so that it is copied as it is"
                raise UsageError(f"is not UTF-8 at byte {error.start}", where=where, fix=fix) from error
            scan(text, where=where)


# ---------------------------------------------------------------------------------------------------------- copier


def _render_copy(
    folder: Path, sources: Mapping[str, Path], configuration: Mapping[str, Any], data: Mapping[str, Any]
) -> dict[str, bytes]:
    from tempfile import TemporaryDirectory

    from copier import Settings as UserSettings
    from copier import run_copy

    with TemporaryDirectory(prefix="areal-new-", ignore_cleanup_errors=True) as stage:
        copy, output = Path(stage, "template").resolve(), Path(stage, "output").resolve()
        output.mkdir()
        _copy_template(sources, configuration, copy)
        with _mistakes_of(folder, copy), _no_programs(Path(stage, "no-programs")):
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
        paths = sorted(path for path in output.rglob("*") if path.is_symlink() or path.is_file())
        return {safe_path(path.relative_to(output).as_posix()): path.read_bytes() for path in paths}


def _copy_template(sources: Mapping[str, Path], configuration: Mapping[str, Any], copy: Path) -> None:
    """Write the template as copier gets it: never inside a git repository, and with no question left to ask."""
    import yaml

    for path, source in sources.items():
        target = copy / path
        target.parent.mkdir(parents=True, exist_ok=True)
        content = source.read_bytes()
        target.write_bytes(_keep_line_endings(content) if path.endswith(SUFFIX) else content)
    (copy / FILE).write_text(yaml.safe_dump(dict(configuration)), encoding="utf-8")


def _keep_line_endings(content: bytes) -> bytes:
    """Let a file that has CRLF throughout convert its output: Jinja ends every line with a bare newline."""
    lines = content.count(b"\n")
    if not lines or content.count(b"\r\n") != lines or re.search(rb"{%[-+]?\s*extends\b", content):
        return content
    return b'{% filter replace("\\n", "\\r\\n") +%}' + content + b"{%+ endfilter %}"


@contextmanager
def _no_programs(nowhere: Path) -> Iterator[None]:
    """Hide git from copier, which asks it about the template and about each file it writes.

    Neither is in a repository, and inside a git hook (GIT_DIR is set) git would answer for the wrong one.
    """
    from plumbum import local

    with local.env(PATH=os.fspath(nowhere)):
        yield


@contextmanager
def _mistakes_of(folder: Path, copy: Path) -> Iterator[None]:
    """Turn what a faulty template raises into a UsageError that names the template's own file and line."""
    from copier.errors import CopierError

    mistakes: tuple[type[Exception], ...] = (CopierError, OSError, *rendering_errors())
    try:
        yield
    except mistakes as error:
        message = str(error).replace(f"{copy}{os.sep}", "").replace(os.fspath(copy), os.fspath(folder))
        where = _template_line(error, folder, copy)
        raise UsageError(f"cannot be rendered: {message}", where=where, fix="correct the template") from error


def _template_line(error: BaseException, folder: Path, copy: Path) -> str:
    """Return "folder/file:line" of the innermost template that was being rendered; the folder when it was none."""
    where, trace = os.fspath(folder), error.__traceback__
    while trace is not None:
        source = Path(trace.tb_frame.f_code.co_filename)
        if source.is_relative_to(copy):
            where = f"{folder / source.relative_to(copy)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where
