"""Rules that came from fixes of public repositories: names, calls and loops that are wrong, and what only looks so."""

from __future__ import annotations

import pytest

from tooling.review.rules.catalogue import RULES

TYPES = "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n\n\n"
TYPES += "if TYPE_CHECKING:\n    from lib import A\n\n\n"
LAYER = "from torch import nn\n\n\nclass Layer(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
LAYER += "        self.proj = nn.Linear(1, 2)\n        self.register_buffer('scale', None)\n\n"
ROWS = "class Rows:\n    def __getitem__(self, i):\n        return self.a[i], self.b[i], i\n\n\n"
PAIRS = "def pairs(n):\n    for i in range(n):\n        yield i, i + 1, i + 2\n\n\n"
OPTIONS = "def main(args):\n    if args.task == 'a':\n        run(args)\n"
OPTIONS += "    if args.task == 'b':\n        run(args, 2)\n"

HANDED = (
    [
        "threading.Thread(target=work, args=(1,)).start()",
        "pool.submit(work, x, x, x)",
        "asyncio.to_thread(work, 1, c=2)",
        "pool.apply_async(work, (x, x, x)).get()",
        "loop.run_in_executor(None, work, x)",
        "partial(work, c=x)",
    ],
    [
        "threading.Thread(target=work, args=(1, 2)).start()",
        "threading.Thread(target=work, args=x).start()",
        "pool.submit(work, x, b=x)",
        "button.submit(work, [x], [x], api_name=False)",
        "pool.apply_async(work, (x,), more)",
        "loop.run_in_executor(None, work, *x)",
        "partial(work, b=x)",
    ],
)

CASES: dict[str, tuple[list[str], list[str]]] = {
    "type-only-name": (
        [
            f"{TYPES}def f(x):\n    return isinstance(x, A)\n",
            f"{TYPES}class B(A):\n    pass\n".replace("from typing import TYPE_CHECKING", "import typing").replace(
                "if TYPE", "if typing.TYPE"
            ),
            f"{TYPES}def f():\n    return [A(i) for i in range(3)]\n",
        ],
        [
            f"{TYPES}def f(x: A) -> list[A]:\n    y: A = x\n    return [y]\n",
            f"{TYPES}def f(x):\n    from lib import A\n\n    return isinstance(x, A)\n",
            f"{TYPES}try:\n    KIND = A\nexcept NameError:\n    KIND = None\n",
            f"{TYPES}def f(x):\n    return x\n".replace("if TYPE_CHECKING", "if f or TYPE_CHECKING") + "print(A)\n",
        ],
    ),
    "optional-in-annotation": (
        [
            "from lib import is_vllm_available\n\nif is_vllm_available():\n    from vllm import Params\n\n\n"
            "def make(n: int) -> Params:\n    return Params(n)\n",
            "try:\n    from vllm import Params\nexcept ImportError:\n    print('no vllm')\n\n\n"
            "class A:\n    def f(self, params: list[Params]):\n        return params\n",
            "from lib import LazyImport\n\nwith LazyImport('docx') as docx:\n    from docx import Params\n\n\n"
            "class B:\n    params: Params | None = None\n",
        ],
        [
            "from lib import is_vllm_available\n\nif is_vllm_available():\n    from vllm import Params\n\n\n"
            "def make(n: int) -> 'Params':\n    made: Params = Params(n)\n    return made\n",
            "from __future__ import annotations\ntry:\n    from vllm import Params\nexcept ImportError:\n    pass\n\n\n"
            "def f(params: Params):\n    return params\n",
            "try:\n    from vllm import Params\nexcept ImportError:\n    Params = None\n\n\n"
            "def f(params: Params):\n    return params\n",
            "try:\n    from vllm import Params\nexcept ImportError as error:\n    raise SystemExit(1) from error\n"
            "\n\ndef f(params: Params):\n    return params\n",
        ],
    ),
    "maybe-missing": (
        ["def f(row):\n    if row and row.get('gpus') > 1:\n        return 1\n    return 0\n"],
        [
            "def f(row):\n    if row.get('gpus') and row.get('gpus') > 1:\n        return 1\n"
            "    return row.get('n', 0) > 1\n",
            "import ray\n\n\ndef f(count):\n    return ray.get(count.remote()) > 0\n",
        ],
    ),
    "undefined-name": (
        [
            "def main(config):\n    return config.lr\n\n\ndef other():\n    return config.lr\n",
            "def f(rows):\n    return [row for row in rows], row\n",
            "def f():\n    import json\n\n    return json\n\n\ndef g(x):\n    return json.dumps(x)\n",
        ],
        [
            "def f(x):\n    def g():\n        return x, y\n\n    y = 1\n    return g\n",
            "def f():\n    global state\n    state = 1\n\n\ndef g():\n    return state\n",
            "def f(rows):\n    if any((found := row) for row in rows):\n        return found\n    return None\n",
        ],
    ),
    "method-mismatch": (
        [
            "import threading\n\n\nclass A:\n    def run(self, n):\n        return n\n\n    def start(self):\n"
            "        threading.Thread(target=self.run, daemon=True).start()\n",
        ],
        [
            "import threading\n\n\nclass A:\n    def run(self, n):\n        return n\n\n    def start(self):\n"
            "        threading.Thread(target=self.run, kwargs={'n': 1}, daemon=True).start()\n",
        ],
    ),
    "unknown-self-attribute": (
        [
            f"{LAYER}    def forward(self, x):\n        return self.mask * self.project(x)\n",
            "from pydantic import BaseModel\n\n\nclass Options(BaseModel):\n    size: int = 1\n\n"
            "    def f(self):\n        return self.sise, self.model_dump()\n",
            "class Wrong(ValueError):\n    def text(self):\n        return self.args, self.reason\n",
        ],
        [
            f"{LAYER}    def forward(self, x):\n        return self.scale * self.proj(x) if self.training else x\n",
            f"{LAYER}        self.add_module(x, y)\n\n    def forward(self, x):\n        return self.more(x)\n",
            "from flax import nn\n\n\nclass A(nn.Module):\n    def f(self):\n        return self.param(1)\n",
            "class Kind(type):\n    def f(self):\n        return self.known\n",
        ],
    ),
    "argument-order": (
        [
            "def f(requests, sampling_params, run):\n    for sp, req in zip(requests, sampling_params):\n"
            "        run(req, sp)\n",
            "def f(prompts, answers):\n"
            "    return [(answer, i) for i, (answer, prompt) in enumerate(zip(prompts, answers))]\n",
        ],
        [
            "def f(requests, sampling_params, run):\n    for req, sp in zip(requests, sampling_params):\n"
            "        run(req, sp)\n",
            "def f(rows, names):\n    return {a: b for a, b in zip(rows, names)}\n",
        ],
    ),
    "misspelt-attribute": (
        [
            "from lib import Base\n\n\nclass Model(Base):\n    def __init__(self, n):\n        self.most_token = n\n\n"
            "    def f(self):\n        return self.most_tokens\n",
        ],
        [
            "from lib import Base\n\n\nclass Trainer(Base):\n    def loss(self, x):\n"
            "        if self.cfg.loss_type == 'a':\n            return x\n        raise ValueError(self.loss_type)\n",
            "from lib import Base\n\n\nclass Other(Base):\n    def __init__(self, args):\n"
            "        self.loss_name = args\n\n    def loss(self, x):\n"
            "        return self.config.loss_name, self.loss_name\n",
        ],
    ),
    "changed-while-iterating": (
        [
            "def f(rows):\n    for row in rows:\n        if row.done:\n            rows.remove(row)\n",
            "def f(self):\n    for key in self.kept.keys():\n        if key.old:\n            del self.kept[key]\n",
            "import sys\n\n\ndef f(name):\n    for key, value in sys.modules.items():\n        if value is name:\n"
            "            return key\n    return ''\n",
        ],
        [
            "def f(rows):\n    for row in rows:\n        if row:\n            rows.remove(row)\n            break\n",
            "def f(rows):\n    for row in list(rows):\n        rows.remove(row)\n",
            "def f(rows):\n    for row in rows:\n        if row.done:\n            rows.pop()\n            return row\n"
            "    return None\n",
            "def f(rows, other):\n    for row in rows:\n        other.remove(row)\n",
        ],
    ),
    "pair-halves-equal": (
        [
            "def f(states):\n    text_left = states[0].text()\n    text_right = states[0].text()\n"
            "    return text_left + text_right\n",
            "def f(rows):\n    first = rows[0]\n    second = rows[0]\n    return first, second\n",
        ],
        [
            "def f(states):\n    text_left = states[0].text()\n    text_right = states[1].text()\n"
            "    return text_left + text_right\n",
            "def f(row):\n    left = row['x'].copy()\n    right = row['x'].copy()\n    return left, right\n",
        ],
    ),
    "unpack-mismatch": (
        [
            f"{ROWS}def f():\n    rows = Rows()\n    for a, b in rows:\n        print(a, b)\n",
            f"{PAIRS}def f():\n    for a, b in pairs(3):\n        print(a, b)\n",
            f"{PAIRS}def f():\n    return [a for a, b in pairs(3)]\n",
        ],
        [
            f"{ROWS}def f():\n    rows = Rows()\n    for a, b, c in rows:\n        print(a, b, c)\n",
            f"{PAIRS}def f():\n    for a, *rest in pairs(3):\n        print(a, rest)\n",
            f"{ROWS}def f(loader):\n    rows = Rows()\n    rows = loader(rows)\n    for a, b in rows:\n        pass\n",
        ],
    ),
    "dropped-result": (
        ["def f(names, more):\n    names.intersection(more)\n    return names\n"],
        ["def f(names, more):\n    names.intersection_update(more)\n    return names\n"],
    ),
    "dead-assignment": (
        [
            "def f(g, n):\n    a, b = g(n, size=2)\n    a, b = g(n)\n    return a, b\n",
            "def f(g, h, n):\n    a, b = g(n)\n    a, b = h(n)\n    return a, b\n",
        ],
        [
            "def f(rows):\n    a, b = next(rows)\n    a, b = next(rows)\n    return a, b\n",
            "def f(g, n):\n    a, b = g(n)\n    a, b = g(a, b)\n    return a, b\n",
        ],
    ),
}


@pytest.fixture(scope="module")
def found(shared_world) -> dict[str, set[str]]:
    return shared_world.found_in_cases(CASES)


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_what_is_wrong_and_is_silent_on_what_is_right(found, rule):
    assert found[rule] == {f"bad_{number}" for number in range(len(CASES[rule][0]))}


def test_what_another_thread_is_handed_fits_its_function(world):
    bad, good = HANDED
    lines = [f"def f_{number}(pool, loop, button, x, more):\n    {call}\n" for number, call in enumerate((*bad, *good))]
    text = "import asyncio\nimport threading\nfrom functools import partial\nfrom pkg.work import work\n" + "".join(
        lines
    )
    world.commit({"pkg/__init__.py": "", "pkg/work.py": "def work(a, b):\n    return a + b\n"})
    world.commit({"pkg/use.py": text})
    found = [line for rule, _, line in world.found() if rule == "signature-mismatch"]
    assert found == [6 + 2 * number for number in range(len(bad))]


def test_projects_of_one_repository_have_names_of_their_own(world):
    package = {"__init__.py": "", "work.py": "def work(a, b):\n    return a + b\n"}
    row = (
        "from typing import TypedDict\n\n\nclass Row(TypedDict):\n    a: int\n\n\ndef f():\n    return Row({'a': 1})\n"
    )
    world.commit({"one/pyproject.toml": "", "two/setup.py": "print(1)\n", "two/src/lib/__init__.py": ""})
    world.commit({f"one/pkg/{name}": text for name, text in package.items()} | {"two/src/lib/row.py": row})
    world.commit(
        {"one/pkg/use.py": "from pkg.work import work, gone\n\nwork(1)\n", "two/src/lib/use.py": "import lib.gone\n"}
    )
    assert world.found() == [
        ("unresolved-import", "one/pkg/use.py", 1),
        ("unresolved-import", "two/src/lib/use.py", 1),
        ("signature-mismatch", "one/pkg/use.py", 3),
    ]
    world.commit({"two/src/lib/row.py": f"{row}\n\ndef g():\n    return Row()\n"})
    assert world.found() == []


def test_names_below_a_source_folder_are_followed(world):
    use = "from .work import work, gone\n\n\ndef f(x):\n    return g(x, 1), work(x)\n\n\ndef g(x):\n    return x\n"
    world.commit({"src/pkg/__init__.py": "", "src/pkg/work.py": "def work(a, b):\n    return a + b\n"})
    world.commit({"src/pkg/use.py": use})
    assert world.found() == [
        ("unresolved-import", "src/pkg/use.py", 1),
        ("signature-mismatch", "src/pkg/use.py", 5),
        ("signature-mismatch", "src/pkg/use.py", 5),
    ]


def test_modules_that_are_built_are_not_missing(world):
    world.commit({"native/setup.py": "print(1)\n", "native/src/fast/__init__.py": "", "native/src/fast/rows.cc": ""})
    world.commit({"native/src/fast/config.py.in": "", "native/src/fast/data/init.cc": ""})
    names = ("rows", "config", "data.init", "gone")
    world.commit({"use.py": "".join(f"import fast.{name}\n" for name in names)})
    assert world.found() == [("unresolved-import", "use.py", 4)]


def test_tables_of_what_is_imported_on_demand_name_what_is_there(world):
    lazy = (
        "_LAZY = {\n    'Engine': '.engine',\n    'Gone': 'pkg.engine',\n    'Nothing': '.nowhere',\n    'x': 'y',\n}\n"
    )
    structure = "_import_structure = {\n    'engine': ['Engine', 'Gone'],\n    'nowhere': ['State'],\n}\n"
    world.commit({"pkg/engine.py": "class Engine:\n    pass\n", "pkg/sub/engine.py": "class Engine:\n    pass\n"})
    world.commit({"pkg/__init__.py": lazy, "pkg/sub/__init__.py": structure})
    assert sorted((path, line) for rule, path, line in world.found() if rule == "unresolved-import") == [
        ("pkg/__init__.py", 3),
        ("pkg/__init__.py", 4),
        ("pkg/sub/__init__.py", 2),
        ("pkg/sub/__init__.py", 3),
    ]


def test_a_program_of_click_takes_its_arguments_from_the_command_line(world):
    made = "import click\n\n\n@click.command()\n@click.option('--host')\ndef main(host):\n    print(host)\n\n\n"
    world.commit({"pkg/__init__.py": "", "pkg/program.py": f"{made}if __name__ == '__main__':\n    main()\n"})
    assert world.found() == []


def test_a_coroutine_of_another_file_is_awaited(world):
    one = "class Emitter:\n    async def send(self, x: int) -> int:\n        return x\n"
    two = "from pkg.one import Emitter\n\n\nasync def f(emitter: Emitter) -> None:\n    emitter.send(1)\n"
    world.commit({"pkg/__init__.py": "", "pkg/one.py": one, "pkg/two.py": ""})
    world.commit({"pkg/two.py": two, "pkg/three.py": two.replace("emitter.send", "await emitter.send")})
    assert world.found() == [("never-awaited", "pkg/two.py", 5)]


def test_rules_of_this_page_are_rules_of_one_file():
    assert {name for name in CASES if RULES[name].in_file is None} == set()
