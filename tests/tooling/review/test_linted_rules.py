"""Rules that ruff looks for: code it must find under our names, and code beside it that is right."""

from __future__ import annotations

import pytest

from tooling.review import linter
from tooling.review.rules import typed
from tooling.review.rules.catalogue import RULES
from tooling.review.rules.linted import CODES

LOG = "import logging\nlogger = logging.getLogger(__name__)\n"
CASES: dict[str, tuple[list[str], list[str]]] = {
    "assignment-in-assert": (
        ["assert (n := len('ab')) == 2\nprint(n)\n"],
        ["n = len('ab')\nassert n == 2\n", "if (n := len('ab')) == 2:\n    print(n)\n"],
    ),
    "broken-method": (
        [
            "class A:\n    def __init__(self):\n        yield 1\n",
            "class A:\n    def __str__(self):\n        return 1\n",
            "class A:\n    def __exit__(self):\n        pass\n",
        ],
        [
            "class A:\n    def __init__(self):\n        return None\n",
            "class A:\n    def __str__(self):\n        return '1'\n",
            "class A:\n    def __exit__(self, kind, error, trace):\n        pass\n",
        ],
    ),
    "blocking-in-async": (
        [
            "import time\nasync def f():\n    time.sleep(1)\n",
            "import requests as r\nasync def f():\n    r.post('u')\n",
            "import subprocess\nasync def f():\n    subprocess.run(['ls'])\n",
        ],
        [
            "import asyncio\nasync def f():\n    await asyncio.sleep(1)\n",
            "import time\nasync def f():\n    def inner():\n        time.sleep(1)\n    return inner\n",
            "import time\ndef f():\n    time.sleep(1)\n",
        ],
    ),
    "changed-while-iterating": (
        ["def f(items):\n    for items in items:\n        print(items)\n"],
        ["def f(items):\n    for item in items:\n        print(item)\n"],
    ),
    "stray-comma": (["def f(x):\n    y = x + 1,\n    return y\n"], ["def f(x):\n    y = (x + 1,)\n    return y\n"]),
    "constant-condition": (
        [
            "def f(x):\n    assert (x > 0, 'x is positive')\n",
            "def f(x):\n    return x is 'cpu'\n",
            "def f(x):\n    return x == x\n",
            "import numpy as np\ndef f(x):\n    return x == np.nan\n",
        ],
        [
            "def f(x):\n    assert x > 0, 'x is positive'\n",
            "def f(x):\n    return x is None\n",
            "def f(x, y):\n    return x == y\n",
        ],
    ),
    "definition-replaced": (
        ["def f():\n    return 1\n\n\ndef f():\n    return 2\n"],
        [
            "from typing import overload\n@overload\ndef f(x: int): ...\n@overload\ndef f(x: str): ...\n"
            "def f(x):\n    return x\n",
            "try:\n    from fast import f\nexcept ImportError:\n    def f():\n        return 2\n",
        ],
    ),
    "environment-replaced": (
        ["import os\nos.environ = {}\n"],
        ["import os\nos.environ['A'] = '1'\n"],
    ),
    "exit-drops-error": (
        ["def f(g):\n    try:\n        g()\n    finally:\n        return 1\n"],
        ["def f(g):\n    try:\n        g()\n    finally:\n        print(1)\n    return 1\n"],
    ),
    "format-mismatch": (
        [
            f"{LOG}logger.info('%s of %s', 1)\n",
            "print('%s %d' % (1,))\n",
            "print('{} {}'.format(1))\n",
            "print('{a}'.format(b=1))\n",
        ],
        [
            f"{LOG}logger.info('%s of %s', 1, 2)\n",
            "print('%s %d' % (1, 2))\n",
            "print('{} {}'.format(1, 2))\n",
            "def f(values):\n    return '%s %d' % values\n",
        ],
    ),
    "instance-kept-by-cache": (
        ["import functools\nclass A:\n    @functools.lru_cache\n    def f(self, x):\n        return x\n"],
        [
            "import functools\nclass A:\n    @staticmethod\n    @functools.cache\n    def f(x):\n        return x\n",
            "import functools\n@functools.lru_cache\ndef f(x):\n    return x\n",
        ],
    ),
    "misplaced-statement": (
        ["def f(g):\n    yield from g\n\n\nclass A:\n    yield 1\n", "for x in []:\n    pass\nbreak\n"],
        ["def f(g):\n    yield from g\n", "for x in []:\n    break\n"],
    ),
    "misread-function": (
        ["print('embedding.weight'.lstrip('embedding.'))\n", "import re\nprint(re.sub('a', 'b', 'c', re.I))\n"],
        ["print('  a'.lstrip(' '))\n", "import re\nprint(re.sub('a', 'b', 'c', flags=re.I))\n"],
    ),
    "invalid-escape": (
        ["import re\nre.findall('\\d+', 'a')\n", "x = 'a\\%'\n", "x = f'\\w{1}'\n"],
        ["import re\nre.findall(r'\\d+', 'a')\n", "x = 'a\\n'\n", "x = 'a\\\\%'\n"],
    ),
    "no-effect": (
        ["def f(x):\n    x == 1\n    return x\n", "def f(x):\n    x = x\n    return x\n"],
        ["def f(x):\n    x = 1\n    return x\n", "def f(x):\n    assert x == 1\n"],
    ),
    "not-an-exception": (
        ["def f():\n    raise NotImplemented\n", "def f():\n    raise 'text'\n"],
        ["def f():\n    raise NotImplementedError\n"],
    ),
    "old-numpy-name": (
        ["import numpy as np\nx = np.zeros(3).astype(np.float)\n"],
        ["import numpy as np\nx = np.zeros(3).astype(np.float64)\n"],
    ),
    "repeated-key": (
        ["x = {'lr': 1e-4, 'steps': 10, 'lr': 1e-5}\n", "x = {1, 2, 1}\n"],
        ["x = {'lr': 1e-4, 'steps': 10}\n", "def f(a, b):\n    return {a: 1, b: 2}\n"],
    ),
    "request-without-timeout": (
        ["import requests\nrequests.get('http://a.example')\n"],
        ["import requests\nrequests.get('http://a.example', timeout=5)\n"],
    ),
    "shared-temporary-name": (
        ["import tempfile\nx = tempfile.mktemp()\n"],
        ["import tempfile\nx = tempfile.mkdtemp()\n"],
    ),
    "unpacked-archive": (
        ["import tarfile\ndef f(path, folder):\n    with tarfile.open(path) as a:\n        a.extractall(folder)\n"],
        [
            "import tarfile\ndef f(path, folder):\n    with tarfile.open(path) as a:\n"
            "        a.extractall(folder, filter='data')\n"
        ],
    ),
    "unreachable-handler": (
        ["def f(g):\n    try:\n        g()\n    except ValueError or KeyError:\n        return 1\n"],
        ["def f(g):\n    try:\n        g()\n    except (ValueError, KeyError):\n        return 1\n"],
    ),
    "unverified-connection": (
        ["import requests\nrequests.get('http://a.example', verify=False, timeout=5)\n"],
        ["import requests\nrequests.get('http://a.example', verify='/ca.pem', timeout=5)\n"],
    ),
}


def reported(code: list[str]) -> list[set[str]]:
    """Return the rules reported for each text; all go to ruff at once."""
    found, note = linter.lint({f"{number}": text for number, text in enumerate(code)})
    assert note == ""
    return [{rule for rule, _ in found.get(str(number), ())} for number in range(len(code))]


@pytest.mark.sample(8)
@pytest.mark.parametrize("rule", CASES)
def test_a_rule_of_ruff_is_reported_under_our_name(rule):
    wrong, right = CASES[rule]
    assert all(rule in each for each in reported(wrong)), rule
    assert not any(rule in each for each in reported(right)), rule


def test_every_rule_that_only_ruff_looks_for_is_tested_here():
    asked_of_others = {name for name, rule in RULES.items() if rule.in_file is None and rule.in_change is None}
    assert asked_of_others - {rule.id for rule in typed.RULES} <= set(CASES)
    assert set(CODES.values()) <= set(RULES)


def test_only_what_is_new_is_reported_and_once(world):
    old = "def f(names, hooks):\n    for name in names:\n        hooks.append(lambda x: print(name, x))\n"
    world.commit({"a.py": old})
    world.commit({"a.py": f"# moved\n\n{old}\n\nx = {{'a': 1, 'a': 2}}\n"})
    assert world.found() == [("repeated-key", "a.py", 8)]


def test_line_numbers_in_messages_do_not_make_an_old_finding_new(world):
    twice = "def f():\n    return 1\n\n\ndef f():\n    return 2\n"
    world.commit({"a.py": twice})
    world.commit({"a.py": f"\n\nprint(0)\n\n\n{twice}"})
    assert world.found() == []


def test_noqa_is_respected_and_no_configuration_is(world):
    world.commit({"pyproject.toml": "[tool.ruff.lint]\nignore = ['ALL']\n", "ruff.toml": "broken ["})
    world.commit({"a.py": "x = {'a': 1, 'a': 2}\ny = {'a': 1, 'a': 2}  # noqa: F601\n"})
    assert world.found() == [("repeated-key", "a.py", 1)]


def test_without_ruff_the_review_says_what_did_not_look(world, monkeypatch):
    monkeypatch.setattr(linter, "ruff_program", lambda: None)
    world.commit({"a.py": "x = {'a': 1, 'a': 2}\n"})
    outcome = world.review()
    assert outcome.findings == ()
    assert any("ruff is not installed" in note for note in outcome.notes)


def test_a_ruff_that_says_nothing_at_all_is_broken(monkeypatch):
    monkeypatch.setattr(linter, "ruff_program", lambda: "true")
    rows, note = linter.lint({"a.py": "x = 1\n"})
    assert (rows, note.partition(":")[0]) == ({}, "ruff could not be run")


def test_what_only_the_compiler_refuses_is_no_python(world):
    world.commit({"a.py": "def f(a):\n    return a\n\n\nf(a=1)\n"})
    world.commit({"a.py": "def f(a):\n    return a\n\n\nf(a=1, a=2)\n"})
    assert world.found() == [("unreadable-python", "a.py", 5)]


def test_a_dataclass_with_a_mutable_default_cannot_be_made(world):
    head = "from dataclasses import dataclass, field\n\n\n@dataclass\nclass A:\n"
    world.commit({"a.py": f"{head}    x: list = field(default=[])\n", "b.py": f"{head}    x: int = field(default=1)\n"})
    assert world.found() == [("mutable-default", "a.py", 6)]
