"""Commands of click and typer are read off decorators and signatures; what cannot be read is said to be unknown."""

from __future__ import annotations

import pytest

from tooling.upgrade.interfaces.modules import ReleaseModules
from tooling.upgrade.interfaces.programs import ReleasePrograms
from tooling.upgrade.sources.folder import memory_release

CLICK = """
import click
from up.common import shared

@click.group()
def main(): ...

@main.command()
@click.option("--model", "-m", required=True)
@click.option("--eager/--no-eager", default=False)
@click.argument("path")
def serve_model(model, eager, path): ...

@main.command("export")
@shared
def exported(): ...

@click.command()
@click.option("--out")
def convert(out): ...

main.add_command(convert, name="to-onnx")
"""
TYPER = """
import typer
from typing import Annotated

app = typer.Typer()

@app.command()
def train(
    config: str,
    dry_run: bool = False,
    num_gpus: Annotated[int, typer.Option("--gpus", "-g")] = 1,
    name: str = typer.Argument("x"),
): ...
"""


def programs(text, entry, **more):
    files = {"up/__init__.py": "", "up/cli.py": text} | {f"up/{name}.py": body for name, body in more.items()}
    release = memory_release(files, "up", "1", scripts={"up": entry})
    return ReleasePrograms(ReleaseModules(release))


def test_a_group_of_click_has_commands_with_options():
    found = programs(CLICK, "up.cli:main", common="def shared(function): ...\n")
    serve = found.command("up", ["serve-model"])
    assert set(serve.flags()) == {"--model", "-m", "--eager", "--no-eager"}
    assert not serve.unknown
    assert set(found.command("up", ["to-onnx"]).flags()) == {"--out"}
    assert not found.command("up", ["gone"]).known


def test_options_of_an_unknown_decorator_are_unknown():
    assert programs(CLICK, "up.cli:main").command("up", ["export"]).unknown == ("up/cli.py:15",)


def test_a_group_that_loads_commands_itself_is_unknown():
    text = "import click\n@click.group(cls=Lazy)\ndef main(): ...\n"
    assert programs(text, "up.cli:main").command("up", ["serve"]).unknown


@pytest.mark.parametrize(
    ("text", "entry"),
    [(TYPER, "up.cli:app"), (f"{TYPER}\ndef main():\n    app()\n", "up.cli:main"), (TYPER + "\napp()\n", "-m")],
    ids=["app", "function", "module"],
)
def test_an_app_with_one_command_takes_its_flags_itself(text, entry):
    found = programs(text, entry if entry != "-m" else "up.cli:app")
    program = "up.cli" if entry == "-m" else "up"
    assert set(found.command(program, ["train.yaml"]).flags()) == {"--dry-run", "--no-dry-run", "--gpus", "-g"}


def test_apps_of_several_modules_are_nested():
    more = "import typer\nsub = typer.Typer()\n@sub.command()\ndef a(x: int = 1): ...\n@sub.command()\ndef b(): ...\n"
    text = "import typer\nfrom up.more import sub\napp = typer.Typer()\napp.add_typer(sub, name='tools')\n"
    text += "@app.command()\ndef run(fast: bool = True): ...\n"
    found = programs(text, "up.cli:app", more=more)
    assert set(found.command("up", ["tools", "a"]).flags()) == {"--x"}
    assert set(found.command("up", ["run"]).flags()) == {"--fast", "--no-fast"}


def test_commands_go_by_the_names_that_they_and_their_apps_have():
    text = "import click\nimport typer\n@click.group()\ndef main(): ...\n@click.command('to-onnx')\n"
    text += "@click.option('--out')\ndef convert(out): ...\nmain.add_command(convert)\n"
    assert set(programs(text, "up.cli:main").command("up", ["to-onnx"]).flags()) == {"--out"}
    text = "import typer\napp = typer.Typer()\nsub = typer.Typer(name='tools')\napp.add_typer(sub)\n"
    text += "@sub.command()\ndef a(x: int = 1): ...\n@sub.command()\ndef b(): ...\n@app.command()\ndef run(): ...\n"
    assert set(programs(text, "up.cli:app").command("up", ["tools", "a"]).flags()) == {"--x"}
    unnamed = programs(text.replace("name='tools'", ""), "up.cli:app")
    assert unnamed.command("up", ["tools", "a"]).unknown == ("up/cli.py:4",)


def test_groups_that_hold_each_other_end():
    text = "import click\n@two.group()\ndef one(): ...\n@one.group()\ndef two(): ...\n"
    assert programs(text, "up.cli:one").command("up", ["two", "one"] * 2).unknown


@pytest.mark.parametrize("settings", ["{'ignore_unknown_options': True}", "SETTINGS"])
def test_options_that_are_not_known_may_be_ignored(settings):
    text = f"import click\n@click.command(context_settings={settings})\n@click.option('--a')\ndef main(a): ...\n"
    assert programs(text, "up.cli:main").command("up", []).lenient
    strict = programs(text.replace(settings, "{'max_content_width': 120}"), "up.cli:main")
    assert not strict.command("up", []).lenient


def test_names_that_only_run_time_knows_are_unknown():
    text = "import click\n@click.command()\n@click.option(*NAMES)\n@click.option(FLAG)\ndef main(a): ...\n"
    assert len(programs(text, "up.cli:main").command("up", []).unknown) == 2


def test_what_a_module_only_defines_is_not_its_program():
    text = "import click\n@click.command()\n@click.option('--a')\ndef inner(a): ...\ndef never():\n    inner()\n"
    assert programs(text, "up.cli:inner").command("up.cli", []) is None


def test_functions_and_classes_are_put_under_an_app_by_calls():
    text = "import typer\napp = typer_factory()\nclass Serve:\n    def __init__(self, port: int = 1): ...\n"
    text += "def env(): ...\napp.command(name='serve')(Serve)\napp.command()(env)\ndef main():\n    app()\n"
    found = programs(text, "up.cli:main")
    assert set(found.command("up", ["serve"]).flags()) == {"--port"}
    assert not found.command("up", ["env"]).flags()


def test_a_function_that_runs_neither_is_none_of_them():
    text = "import argparse\ndef main():\n    p = argparse.ArgumentParser()\n    p.add_argument('--x')\n"
    assert set(programs(text, "up.cli:main").command("up", []).flags()) == {"--x"}


def test_a_helper_puts_a_command_under_the_name_it_is_given():
    text = """
import copy
import click

@click.group()
def main(): ...

@click.group("jobs")
def job_group(): ...

@job_group.command()
@click.option("--address")
def submit(address): ...

def alias(command, name, hidden):
    same = copy.deepcopy(command)
    same.hidden = hidden
    main.add_command(same, name=name)

alias(job_group, name="job", hidden=False)

def run():
    return main()
"""
    found = programs(text, "up.cli:run")
    assert set(found.command("up", ["job", "submit"]).flags()) == {"--address"}
    assert not found.command("up", ["job"]).unknown
