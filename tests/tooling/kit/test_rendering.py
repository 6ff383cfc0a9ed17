"""Rendering: real copier on real templates; the same bytes everywhere, nothing run, nothing outside touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tooling.cli.errors import UsageError
from tooling.kit.names import parse_name
from tooling.kit.template.kinds import ProjectSettings
from tooling.kit.template.rendering import complete_answers, render, template_context

NAMES = parse_name("Gsm8k-Hard")
SETTINGS = ProjectSettings(package="my.models", tests="checks", templates=())
QUESTIONS = "_subdirectory: template\n_templates_suffix: .jinja\nstyle: {type: str, default: exact}\n"


def template(folder: Path, files: dict[str, str | bytes], *, questions: str = QUESTIONS) -> Path:
    """A template; `files` are relative to its `template` folder, unless they begin with "/"."""
    contents = {"/copier.yml": questions, "/template.toml": 'name = "reward"\nsummary = "x"\n', **files}
    for path, content in contents.items():
        target = folder / path[1:] if path.startswith("/") else folder / "template" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "template").mkdir(exist_ok=True)
    return folder


def rendered(folder: Path, **answers: Any) -> dict[str, bytes]:
    return render(folder, answers, NAMES, SETTINGS)


def refused(folder: Path, **answers: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        rendered(folder, **answers)
    return caught.value


# ---------------------------------------------------------------------------------------------------------- output


def test_names_settings_and_answers_reach_files_and_paths(tmp_path):
    body = "{{ raw }} {{ snake }} {{ pascal }} {{ const }} {{ kebab }} {{ words }} {{ key }} {{ kind }} {{ style }}"
    folder = template(
        tmp_path,
        {
            "{{ package_path }}/{{ kind }}/{{ snake }}.py.jinja": body,
            "{{ tests }}/test_{{ snake }}.py.jinja": "{{ package }}",
        },
    )
    assert rendered(folder, style="boxed") == {
        "checks/test_gsm8k_hard.py": b"my.models",
        "my/models/reward/gsm8k_hard.py": b"Gsm8k-Hard gsm8k_hard Gsm8kHard GSM8K_HARD gsm8k-hard gsm8k hard "
        b"gsm8k_hard reward boxed",
    }


def test_defaults_and_further_answers_reach_templates(tmp_path):
    folder = template(tmp_path, {"a.txt.jinja": "{{ style }} {{ columns.x[1] }}"})
    assert rendered(folder, columns={"x": [1, 2]}) == {"a.txt": b"exact 2"}
    complete = complete_answers(folder, {"columns": 1}, NAMES, SETTINGS)
    assert complete == {"style": "exact", "columns": 1}


def test_a_further_answer_cannot_pose_as_a_name(tmp_path):
    assert "already" in refused(template(tmp_path, {}), snake="other").message


def test_partials_are_shared_and_not_rendered_themselves(tmp_path):
    folder = template(
        tmp_path,
        {"/partials/body.jinja": "def {{ snake }}(): ...\n", "a.py.jinja": "{% include 'partials/body.jinja' %}"},
    )
    assert rendered(folder) == {"a.py": b"def gsm8k_hard(): ...\n"}


def test_empty_names_leave_files_out(tmp_path):
    files = {"{% if style == 'boxed' %}b.txt{% endif %}.jinja": "b", "{% if style == 'boxed' %}d{% endif %}/c.txt": "c"}
    folder = template(tmp_path, {**files, "a.txt": "a"})
    assert rendered(folder) == {"a.txt": b"a"}
    assert rendered(folder, style="boxed") == {"a.txt": b"a", "b.txt": b"b", "d/c.txt": b"c"}


def test_other_files_pass_byte_for_byte(tmp_path):
    content = bytes(range(256)) + b"{{ snake }}\r\n"
    assert rendered(template(tmp_path, {"data.bin": content})) == {"data.bin": content}


@pytest.mark.parametrize("envops", ["", "_envops: {trim_blocks: true, lstrip_blocks: true}\n"])
def test_line_endings_are_those_of_the_template(tmp_path, envops):
    files = {
        "crlf.txt.jinja": "{{ snake }}\r\n{% if true %}\r\nx\r\n{% endif %}\r\n",
        "lf.txt.jinja": "{{ snake }}\nx\n",
    }
    result = rendered(template(tmp_path, files, questions=QUESTIONS + envops))
    assert result["lf.txt"] == b"gsm8k_hard\nx\n"
    lines = [b"gsm8k_hard", b"x"] if envops else [b"gsm8k_hard", b"", b"x", b""]
    assert result["crlf.txt"] == b"".join(line + b"\r\n" for line in lines)


def test_templates_of_templates_stay_templates(tmp_path):
    folder = template(tmp_path, {"{{ '{{ snake }}' }}.py.jinja.jinja": "{% raw %}{{ snake }}{% endraw %} {{ kebab }}"})
    assert rendered(folder) == {"{{ snake }}.py.jinja": b"{{ snake }} gsm8k-hard"}


def test_litter_is_no_part_of_a_template(tmp_path):
    folder = template(tmp_path, {"a.txt": "a", "__pycache__/a.pyc": b"x", ".DS_Store": b"x", "b.pyc": b"x"})
    assert rendered(folder) == {"a.txt": b"a"}


def test_paths_come_sorted(tmp_path):
    folder = template(tmp_path, {f"{name}.txt": name for name in ("b", "a/z", "c", "a/b")})
    assert list(rendered(folder)) == ["a/b.txt", "a/z.txt", "b.txt", "c.txt"]


# ---------------------------------------------------------------------------------------------------------- isolation


@pytest.mark.parametrize("settings", ["defaults: {style: mine}\n", "defaults: [no table\n"])
def test_a_user_s_copier_settings_are_not_read(tmp_path, monkeypatch, settings):
    folder = template(tmp_path / "t", {"a.txt.jinja": "{{ style }}"})
    (tmp_path / "settings.yml").write_text(settings)
    monkeypatch.setenv("COPIER_SETTINGS_PATH", str(tmp_path / "settings.yml"))
    assert rendered(folder) == {"a.txt": b"exact"}


def test_a_template_that_is_a_git_repository_is_a_plain_folder(tmp_path):
    folder = template(tmp_path / "t", {"a.txt": "committed"})
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@y"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    subprocess.run([*git, "tag", "v1.0.0"], check=True)
    (folder / "template/a.txt").write_text("edited")
    assert rendered(folder) == {"a.txt": b"edited"}
    status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    assert status == " M template/a.txt\n"


PROGRAM = """
import sys
started = []
watched = {"subprocess.Popen", "os.posix_spawn", "os.system"}
sys.addaudithook(lambda name, args: name in watched and started.append(args))
from pathlib import Path
import copier
from tooling.kit.names import parse_name
from tooling.kit.template.kinds import ProjectSettings
from tooling.kit.template.rendering import render
started.clear()
print(sorted(render(Path(sys.argv[1]), {}, parse_name("x"), ProjectSettings())), started)
"""


def rendered_by_child(folder: Path, **environment: str) -> str:
    """What a fresh process says: the rendered paths, and the processes it started."""
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env={**os.environ, **environment, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.exhaustive
def test_inside_a_git_hook_the_repository_is_left_alone(tmp_path):
    """GIT_DIR is set there, and with core.fileMode off copier would write modes into that repository's index."""
    repository = tmp_path / "r"
    git = ["git", "-C", str(repository)]
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (repository / "run.sh").write_text("theirs\n")
    subprocess.run([*git, "config", "core.fileMode", "false"], check=True)
    subprocess.run([*git, "add", "run.sh"], check=True)
    folder = template(tmp_path / "t", {"run.sh": "#!/bin/sh\n"})
    (folder / "template/run.sh").chmod(0o755)
    before = (repository / ".git/index").read_bytes()
    environment = {"GIT_DIR": str(repository / ".git"), "GIT_WORK_TREE": str(repository)}
    assert rendered_by_child(folder, **environment) == "['run.sh'] []"
    assert (repository / ".git/index").read_bytes() == before


def test_rendering_starts_no_process_and_leaves_nothing_behind(tmp_path):
    folder = template(tmp_path / "t", {"{{ snake }}.py.jinja": "{{ style }}", "run.sh": "x"})
    (tmp_path / "temporary").mkdir()
    assert rendered_by_child(folder, TMPDIR=str(tmp_path / "temporary")) == "['run.sh', 'x.py'] []"
    assert list((tmp_path / "temporary").iterdir()) == []


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "setting",
    [
        "_tasks: ['touch /tmp/areal-new-was-here']",
        "_migrations: ['true']",
        "_jinja_extensions: [jinja2.ext.debug]",
        "_external_data: {x: /etc/passwd}",
        "_skip_if_exists: [a]",
        "_templates_suffix: .tmpl",
        "_envops: {variable_start_string: '[['}",
        "_subdirectory: ../elsewhere",
        "_subdirectory: '{{ snake }}'",
        "_subdirectory: missing",
        '_exclude: [\'{{ "a.txt" if "/etc/*" | fileglob }}\']',
        "_exclude: a.txt",
        "_exclude: [3]",
    ],
)
def test_settings_that_run_read_or_confuse_are_refused(tmp_path, setting):
    kept = "".join(line for line in QUESTIONS.splitlines(keepends=True) if not line.startswith(setting.split(":")[0]))
    error = refused(template(tmp_path, {"a.txt": "a"}, questions=f"{kept}{setting}\n"))
    assert error.fix
    assert not Path("/tmp/areal-new-was-here").exists()


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("\n{{ nothing }}\n", 2, "'nothing' is undefined"),
        ("\n\n{{ snake.nothing }}\n", 3, "has no attribute 'nothing'"),
        ("{% if %}\n", 1, "Expected an expression"),
        ("a\n{% for x in y %}\n", 2, "Unexpected end of template"),
        ("\n{{ snake | nothing }}\n", 2, "nothing"),
        ("{{ 1 + snake }}\n", 1, "unsupported operand"),
        ("\n{% include 'partials/missing.jinja' %}", 2, "missing.jinja"),
        ("\n{{ snake.__class__.__subclasses__() }}\n", 2, "unsafe"),
        ("\n{{ now() }}\n", 2, "differ between machines"),
        ("\n{{ make_secret() }}\n", 2, "differ between machines"),
        ("{{ _copier_conf.src_path }}\n", 1, "differ between machines"),
        ("{{ _copier_python }}\n", 1, "differ between machines"),
        ("\n{{ [1, 2] | random }}\n", 2, "no filter 'random'"),
        ("{{ '/etc/*' | fileglob }}\n", 1, "no filter 'fileglob'"),
        ("{{ ['/etc/*'] | map('fileglob') | list }}\n", 1, "no filter 'fileglob'"),
        ("{% set f = 'file' ~ 'glob' %}{{ ['/etc/*'] | map(f) | list }}\n", 1, "no filter '(computed)'"),
        ("{{ '$HOME' | expandvars }}\n", 1, "no filter 'expandvars'"),
        ("{{ '/etc' | relpath }}\n", 1, "no filter 'relpath'"),
        ("{{ 'x' * 10000000000000000 }}\n", 1, "cannot be rendered"),
        ("\n{{ '!!python/name:os.system' | from_yaml }}\n", 2, "cannot be rendered"),
        ("{% filter shuffle %}x{% endfilter %}\n", 1, "no filter 'shuffle'"),
    ],
)
def test_a_mistake_in_a_template_is_named_with_file_and_line(tmp_path, text, line, message):
    error = refused(template(tmp_path, {"a.py.jinja": text}))
    assert error.where == f"{tmp_path}/template/a.py.jinja:{line}"
    assert message in error.message
    assert "areal-new-" not in str(error)  # the temporary copy is nobody's business


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ now " + "-" * 20000 + "1 }}", "nested too deeply"),
        ("{% if 1 %}" * 150 + "{% endif %}" * 150, "too many levels"),
        ("{{ 'a' ~ 3e400 | int }}", "cannot be rendered"),
    ],
)
def test_what_jinja_chokes_on_is_a_mistake_of_the_template(tmp_path, text, message):
    error = refused(template(tmp_path, {"a.py.jinja": text}))
    assert error.where.startswith(str(tmp_path))
    assert message in error.message


def test_a_mistake_in_a_partial_is_named_there(tmp_path):
    files = {"/partials/body.jinja": "\n{{ nothing }}", "a.py.jinja": "{% include 'partials/body.jinja' %}"}
    assert refused(template(tmp_path, files)).where == f"{tmp_path}/partials/body.jinja:2"


def test_a_mistake_in_a_path_is_named(tmp_path):
    error = refused(template(tmp_path, {"{{ nothing }}.py": "x"}))
    assert "{{ nothing }}.py" in error.message
    assert "undefined" in error.message


def test_text_in_another_encoding_is_refused(tmp_path):
    error = refused(template(tmp_path, {"a.txt.jinja": "é".encode("latin-1")}))
    assert "not UTF-8" in error.message


@pytest.mark.parametrize("style", ["../../escape", "/etc/escape", ".git/hooks/pre-commit", "x/../../../escape"])
def test_paths_that_leave_the_folder_are_refused(tmp_path, style):
    folder = template(tmp_path / "inner", {"{{ style }}.txt": "x"})
    refused(folder, style=style)
    assert not list(tmp_path.rglob("escape*"))
    assert not Path("/etc/escape.txt").exists()


def test_links_are_refused(tmp_path):
    folder = template(tmp_path, {"a.txt": "a"})
    (folder / "template/passwd").symlink_to("/etc/passwd")
    assert "links" in refused(folder).message
    (folder / "template/passwd").unlink()
    (folder / "template/etc").symlink_to("/etc")
    assert "links" in refused(folder).message


def test_includes_cannot_leave_the_template(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "secret.jinja").write_text("secret")
    for name in ("../secret.jinja", f"{tmp_path}/secret.jinja"):
        folder = template(tmp_path / "t", {"a.txt.jinja": f"{{% include '{name}' %}}"})
        assert "secret.jinja" in refused(folder).message


@pytest.mark.parametrize(
    "statement",
    [
        "{% include 'partials/hidden' %}",
        "{%-include\n'partials/hidden' ignore missing%}",
        "{% include 'partials/' ~ 'hidden' %}",
        "{% include ['partials/a.jinja', 'partials/hidden'] %}",
        "{% include 'partials/a.jinja' if style == 'boxed' else 'partials/hidden' %}",
        "{% include 'partials/hiddenx.jinja'[:15] %}",
        "{% include style %}",
        "{% import 'partials/hidden' as hidden %}",
        "{% from 'partials/hidden' import x %}",
        "{% extends 'partials/hidden' %}",
    ],
)
def test_files_that_nobody_looked_at_cannot_be_included(tmp_path, monkeypatch, statement):
    monkeypatch.setenv("AREAL_NEW_SECRET", "hunter2")
    body = "{% set x = '$AREAL_NEW_SECRET' | expandvars %}{{ x }}"
    folder = template(tmp_path, {"/partials/hidden": body, "a.txt.jinja": statement})
    error = refused(folder, style="partials/hidden")
    assert "not looked at" in error.message
    assert error.where.endswith("a.txt.jinja:1")


def test_names_of_included_files_may_be_made_of_answers(tmp_path):
    choice = "{% include 'partials/' ~ style ~ '.jinja' %}{% include ['partials/no.jinja', 'partials/b' + '.jinja'] %}"
    folder = template(tmp_path, {"/partials/exact.jinja": "e", "/partials/b.jinja": "b", "a.txt.jinja": choice})
    assert rendered(folder) == {"a.txt": b"eb"}


def test_a_name_that_no_disk_takes_is_refused(tmp_path):
    error = refused(template(tmp_path, {"{{ style }}.txt": "x"}), style="x" * 300)
    assert "cannot be rendered" in error.message


def test_the_context_is_complete():
    context = template_context(NAMES, SETTINGS, "reward")
    assert context["package_path"] == "my/models"
    assert sorted(context) == [
        "const", "kebab", "key", "kind", "package", "package_path", "pascal", "raw", "snake", "tests", "words"
    ]  # fmt: skip
