"""Every style of `areal-new workflow`, in a copy of this repository: what is generated passes the gates and its own
tests, and those tests find out workflows that do the wrong thing.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tooling.cli.errors import NameRefusedError, UsageError
from tooling.kit.template.manifest import load_manifest, resolve
from tooling.kit.names import Names
from tooling.kit.template.kinds import ProjectSettings
from tooling.kit.template.rendering import check_files, complete_answers, format_files, render, template_context
from tooling.new.change import UnitRequest
from tooling.new.matrix import Sandbox
from tooling.new.testing import run_tests

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "templates" / "workflow"
FEEDBACK = 'No!\n"""{{ 7*7 }} {% raw %} \\n \\ \' {x} ünd ' + "noch einmal " * 8
UNITS = {
    "plain_answer": {"style": "single_turn"},
    "second_try": {"style": "multi_turn", "max_turns": 2, "turn_discount": 0.0},
    "odd_words": {"style": "multi_turn", "feedback": FEEDBACK},
    "with_tools": {"style": "tool_use", "max_calls": 2},
    "with_images": {"style": "vision"},
}
LONG = "a_rather_long_name_for_a_workflow_of_ours_as_long_as_allowed"


def generated(name, package="areal", root=ROOT, **answers):
    """The formatted files of a unit, and what its manifest says about them."""
    parts = name.split("_")
    pascal = "".join(part[:1].upper() + part[1:] for part in parts)
    names = Names(name, name, pascal, name.upper(), "-".join(parts), name, " ".join(parts))
    settings = ProjectSettings(package=package)
    complete = complete_answers(TEMPLATE, answers, names, settings)
    files = render(TEMPLATE, complete, names, settings)
    context = {**template_context(names, settings, "workflow"), **complete}
    return format_files(root, files), resolve(load_manifest(TEMPLATE), context, files)


def module_of(files):
    return next(content.decode() for path, content in files.items() if not path.startswith("tests/"))


@pytest.mark.parametrize("name", UNITS)
def test_every_style_passes_the_gates_and_is_the_same_each_time(name):
    files, manifest = generated(name, **UNITS[name])
    assert sorted(files) == [f"areal/workflow/{name}.py", f"tests/areal/workflow/test_{name}.py"]
    assert [result.name for result in check_files(ROOT, files) if not result.ok] == []
    assert [entry.path for entry in manifest.files if entry.test] == [f"tests/areal/workflow/test_{name}.py"]
    assert generated(name, **UNITS[name])[0] == files


@pytest.mark.parametrize("style", ["single_turn", "multi_turn", "tool_use", "vision"])
def test_long_names_and_other_packages_pass_the_gates_too(style, tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in ("areal", "my_company.agents"):
        folder = tmp_path
        for part in (*package.split("."), "workflow"):
            folder /= part
            folder.mkdir()
            (folder / "__init__.py").touch()
        files, manifest = generated(LONG, package, tmp_path, style=style)
        assert [result.detail for result in check_files(tmp_path, files) if not result.ok] == []
        assert manifest.registry[0].value.startswith(f"{package}.workflow.{LONG}:ARatherLong")


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("plain_answer", ["turns", "feedback", "tool", "image", "FaultKind"]),
        ("second_try", ["tool", "image"]),
        ("with_tools", ["turn_discount", "FEEDBACK", "image"]),
        ("with_images", ["turns", "feedback", "tools"]),
    ],
)
def test_a_module_holds_nothing_of_other_styles(name, absent):
    module = module_of(generated(name, **UNITS[name])[0])
    assert [word for word in absent if re.search(rf"\b{word}\b", module)] == []


def test_answers_are_data_whatever_they_hold():
    module = module_of(generated("odd_words", **UNITS["odd_words"])[0])
    values = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in ast.parse(module).body
        if isinstance(node, ast.Assign)
    }
    assert values == {"FEEDBACK": FEEDBACK}
    tools = module_of(generated("with_tools", style="tool_use", tools="a.b:C, my_tools:SEARCH")[0])
    assert 'TOOLS = ("a.b:C", "my_tools:SEARCH")' in tools


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"style": "multi_turns"}, "multi_turn"),
        ({"style": "multi_turn", "max_turns": 1}, "use --style single_turn"),
        ({"style": "multi_turn", "max_turns": 101}, "expected 2 .. 100"),
        ({"style": "multi_turn", "turn_discount": 1.01}, "expected 0 .. 1"),
        ({"style": "multi_turn", "feedback": " \n"}, "without it the model would only continue"),
        ({"style": "multi_turn", "feedback": "a " * 200}, "at most 300 characters"),
        ({"style": "multi_turn", "feedback": "a" * 61}, "words of at most 60 characters"),
        ({"style": "tool_use", "max_calls": 0}, "expected 1 .. 100"),
        ({"style": "tool_use", "tools": "calculator"}, '"calculator" is no "module:object"'),
        ({"style": "tool_use", "tools": "a.b:C,"}, '"" is no "module:object"'),
        ({"style": "tool_use", "tools": "a..b:C"}, '"a..b:C" is no "module:object"'),
        ({"style": "tool_use", "tools": 'a:C",__import__("os").abort(),"'}, 'is no "module:object"'),
        ({"style": "vision", "image_tokenizer": "a-b:C"}, 'expected "module:object"'),
        ({"style": "vision", "image_tokenizer": 'a:C"\nimport os'}, 'expected "module:object"'),
    ],
)
def test_answers_that_make_no_sense_are_refused(answers, message):
    with pytest.raises(UsageError) as caught:
        generated("refused", **answers)
    assert message in str(caught.value)


# ------------------------------------------------------------------------------------------------ in a copy of it all

SCORE = "        value = await score(self.reward, prompt, completion, prompt_ids, response.output_tokens, columns)\n"
MUTANTS = {
    # What is replaced, and by what: each a mistake that a person may well make in a workflow of their own.
    "plain_answer": [
        ("builder = TrajectoryBuilder()", "builder = self.builder"),
        (SCORE, f'        __import__("time").sleep(0.2)\n{SCORE}'),
        (SCORE, f"        try:\n    {SCORE}        except Exception:\n            value = 0.0\n"),
        ("builder.add_response(response, turn=0)", "builder.add_response(one_version(response), turn=0)"),
        ("builder.add_response(response, turn=0)", "builder.add_response(other_logprobs(response), turn=0)"),
        ("builder.add_prompt(prompt_ids)\n", "builder.add_prompt(prompt_ids)\n        prompt = prompt[1:]\n"),
    ],
    "second_try": [
        ("builder.add_response(response, turn=turn)", "builder.add_response(response, turn=0)"),
        ("(num_turns - 1)", "num_turns"),
        ("after_answer(self._feedback_ids, response.output_tokens)", "self._feedback_ids[1:]"),
        ("            return None\n", "            raise\n"),
        (" or stop_reason is StopReason.LENGTH", ""),
    ],
    "with_tools": [
        ("self.gconfig.max_new_tokens - builder.num_sampled", "self.gconfig.max_new_tokens"),
        ("num_failed + result.failed", "num_failed"),
        ("stop=(*gconfig.stop, CALL_END)", "stop=gconfig.stop"),
        ("builder.add_observation(observation)", "builder.tokens.extend(observation)"),
        ("StopReason.LENGTH or turn == self.max_calls", "StopReason.LENGTH"),
    ],
    "with_images": [
        (' if name != "images"', ""),
        ("first_token=first_image_token", "first_token=None"),
        ("builder = TrajectoryBuilder()", "builder = self.builder"),
    ],
}
LINT_IMPORTS = (
    "import sys; from importlinter.cli import lint_imports; "
    "sys.exit(lint_imports(limit_to_contracts=('areal-layers', 'wall-back'), no_cache=True))"
)
CONSTRUCTION = "        self.tokenizer = tokenizer\n"
SHARED = f"{CONSTRUCTION}        self.builder = TrajectoryBuilder()\n"
HELPERS = """

def one_version(response: Any) -> Any:
    from dataclasses import replace

    return replace(response, output_versions=[response.output_versions[-1]] * len(response.output_versions))


def other_logprobs(response: Any) -> Any:
    from dataclasses import replace

    return replace(response, output_logprobs=[value * 1.01 - 0.001 for value in response.output_logprobs])
"""


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    """A copy of this repository with all units in it."""
    made = Sandbox.copy_of(ROOT, tmp_path_factory.mktemp("workflows"))
    for name, answers in UNITS.items():
        made.generate(UnitRequest(kind="workflow", name=name, answers=answers))
    return made


def files(*names):
    return [f"tests/areal/workflow/test_{name}.py" for name in names]


def run_in(sandbox, *command):
    """A child process that imports the sandbox's packages."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(sandbox.root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
    }
    return subprocess.run(command, cwd=sandbox.root, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_generated_tests_pass(sandbox):
    result = run_tests(sandbox.root, files(*UNITS), python=Path(sys.executable))
    assert result.ok, result.detail


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    "gate",
    [
        [
            "-m",
            "mypy",
            "--cache-dir",
            str(ROOT / ".mypy_cache" / "generated"),
            *(f"areal/workflow/{name}.py" for name in UNITS),
        ],
        ["-c", LINT_IMPORTS],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_architecture.py"],
    ],
    ids=["mypy", "import-linter", "architecture"],
)
def test_generated_code_passes_the_other_gates(sandbox, gate):
    done = run_in(sandbox, sys.executable, *gate)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-1000:]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [
        "plain_answer",
        *(pytest.param(unit, marks=pytest.mark.exhaustive) for unit in ("second_try", "with_tools", "with_images")),
    ],
)
def test_generated_tests_find_out_workflows_that_do_the_wrong_thing(sandbox, unit):
    module = (sandbox.root / f"areal/workflow/{unit}.py").read_text()
    test = (sandbox.root / f"tests/areal/workflow/test_{unit}.py").read_text()
    mutants = {f"{unit}_{index}": change for index, change in enumerate(MUTANTS[unit])}
    for name, (old, new) in mutants.items():
        assert old in module, f"{unit} has no {old!r} any more"
        changed = module.replace(old, new).replace(CONSTRUCTION, SHARED) + HELPERS
        (sandbox.root / f"areal/workflow/{name}.py").write_text(changed)
        (sandbox.root / f"tests/areal/workflow/test_{name}.py").write_text(test.replace(f".{unit}:", f".{name}:"))
    done = run_in(sandbox, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *files(*mutants))
    found = set(re.findall(r"^FAILED tests/areal/workflow/test_(\w+)\.py", done.stdout, flags=re.MULTILINE))
    assert [mutants[name] for name in mutants if name not in found] == [], done.stdout[-3000:]


@pytest.mark.parametrize("name", ["tools", "rlvr", "Multi-Turn", "with_engine"])
def test_names_of_modules_beside_it_are_refused(sandbox, name):
    with pytest.raises(NameRefusedError):
        sandbox.generate(UnitRequest(kind="workflow", name=name))
