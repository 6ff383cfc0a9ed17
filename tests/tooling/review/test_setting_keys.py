"""Keys of YAML files beside the classes that read them."""

from __future__ import annotations

import pytest

CLASSES = """
from dataclasses import dataclass


@dataclass
class BaseSettings:
    path: str
    seed: int = 1


@dataclass
class ActorConfig(BaseSettings):
    n_samples: int = 4
    learning_rate: float = 1e-6
    max_new_tokens: int = 16
    min_steps: int = 1


@dataclass
class RunConfig:
    name: str
    actor: ActorConfig
    critic: "ActorConfig | None" = None
    more: dict | None = None
    steps: int = 1


@dataclass
class Loose:
    path: str
    seed: int
    n_sampels: int
"""
GOOD = """
name: run
actor:
  path: m
  seed: 2
  n_samples: 8
  learning_rate: 1.0e-5
other: [{a: 1}, {b: 2}]
"""


@pytest.fixture
def package(world):
    world.commit({"package/__init__.py": "", "package/config.py": CLASSES, "configs/run.yaml": GOOD})
    return world


def found(world, files) -> list[tuple[str, str, int]]:
    world.commit(files)
    return [each for each in world.found() if each[0] == "unknown-setting-key"]


def test_a_misspelt_key_is_found(package) -> None:
    text = GOOD.replace("n_samples", "n_sample")
    assert found(package, {"configs/run.yaml": text}) == [("unknown-setting-key", "configs/run.yaml", 6)]


def test_a_key_of_a_renamed_field_is_found_in_files_outside_the_change(package) -> None:
    classes = CLASSES.replace("learning_rate", "lr")
    assert found(package, {"package/config.py": classes}) == [("unknown-setting-key", "configs/run.yaml", 7)]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("n_samples: 8", "min_steps: 8"),
        # Nothing of almost this name is there, and nothing was: another program may read it.
        GOOD.replace("n_samples", "colour"),
        # A field of almost this name is set too: both may be meant, for two readers.
        GOOD.replace("n_samples: 8", "n_samples: 8\n  n_sample: 8"),
        # Another class has all of them.
        "a: {path: m, seed: 1, n_sampels: 2}\n",
        # Two keys are unknown: this is another mapping.
        GOOD.replace("n_samples: 8", "n_sample: 8\n  colour: red"),
        # A template, anchors that lead back, several documents, no mapping
        "{{ name }}: {% if x %}\n",
        "&a [*a, {path: m}]\n---\n- 1\n",
    ],
)
def test_what_may_be_right_is_not_reported(package, text: str) -> None:
    assert found(package, {"configs/run.yaml": text}) == []


def test_a_field_that_another_class_of_the_same_name_lost_says_nothing(package) -> None:
    older = CLASSES.replace("    min_steps: int = 1\n", "    min_steps: int = 1\n    template: str = 'x'\n")
    package.commit({"package/older.py": older})
    key = GOOD.replace("  seed: 2\n", "  seed: 2\n  template: x\n").partition("other")[0]
    text = key[key.index("  path") :].replace("  ", "")
    assert found(package, {"package/older.py": CLASSES, "configs/actor.yaml": text}) == []


def test_a_class_that_takes_any_key_is_left_alone(package) -> None:
    classes = (
        "from pydantic import BaseModel\n\n\nclass Job(BaseModel, extra='allow'):\n"
        "    path: str\n    seed: int\n    steps: int\n    n_samples: int\n"
    )
    files = {"package/job.py": classes, "configs/job.yaml": "path: m\nseed: 1\nsteps: 3\nn_sample: 2\n"}
    package.commit({"package/config.py": "x = 1\n"})
    assert found(package, files) == []


RUN = "name: run\nsteps: 3\nactor:\n  path: m\n  seed: 1\n  {key}: 2\nmore:\n  colour: red\n"
COMMAND = (
    "python train.py \\\n  name=a \\\n  actor.path=m \\\n  actor.seed=1 \\\n  actor.{key}=2 --more.a.b 3 --steps.x=1\n"
)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        # The annotation of `actor` says who reads it: no field has to be near.
        ("run.yaml", RUN, 6),
        ("run.toml", 'name = "a"\nsteps = 3\nmore = { a = 1 }\n\n[actor]\npath = "m"\nseed = 1\n{key} = 2\n', 8),
        ("run.sh", f"# a.b=c\n{COMMAND}", 6),
        ("README.md", f"Run it:\n\n    {COMMAND}", 7),
    ],
)
def test_a_key_that_no_field_has_is_found_where_annotations_lead_to_its_class(package, path, text, line) -> None:
    assert found(package, {f"more/{path}": text.replace("{key}", "colour")}) == [
        ("unknown-setting-key", f"more/{path}", line)
    ]
    assert found(package, {f"good/{path}": text.replace("{key}", "n_samples")}) == []


@pytest.mark.parametrize(
    "code",
    [
        # Somebody derives a class that has it, or moves it to where it belongs.
        "from dataclasses import dataclass\nfrom package.config import ActorConfig\n\n\n@dataclass\n"
        "class MyActor(ActorConfig):\n    colour: str = ''\n",
        "from package.config import ActorConfig\n\n\ndef read(raw):\n    raw['n_samples'] = raw.pop('colour')\n"
        "    return ActorConfig(**raw)\n",
    ],
)
def test_a_key_that_other_code_takes_is_left_alone(package, code: str) -> None:
    assert found(package, {"package/more.py": code, "run.yaml": RUN.replace("{key}", "colour")}) == []


def test_an_alias_of_several_classes_is_not_the_class_of_that_name_elsewhere(package) -> None:
    code = (
        "from dataclasses import dataclass\nfrom typing import TypeAlias\n\nfrom package.config import BaseSettings, "
        "RunConfig\n\nActorConfig: TypeAlias = BaseSettings\n\n\n@dataclass\nclass Job:\n    name: str\n"
        "    steps: int\n    more: str\n    actor: ActorConfig\n    own: str = ''\n"
    )
    text = RUN.replace("{key}", "colour") + "own: x\n"
    assert found(package, {"package/job.py": code, "job.yaml": text}) == []


@pytest.mark.parametrize("text", ["[[a]]\nb = 1\n", "a = \n", 'a = """\n[b]\nc = 1\n"""\n', "[a]\n'b.c' = 1\n"])
def test_toml_that_is_not_plain_says_nothing(package, text: str) -> None:
    assert found(package, {"run.toml": text}) == []
