"""Rules about lifetimes, programs and patterns, from fixes of one repository and the history of others: each finds its
cases and nothing beside them."""

from __future__ import annotations

import pytest

DIST = "import torch.distributed as dist\n\n\n"
POOL = "def f(executor, jobs, check):\n    found = executor.map(str, jobs)\n"
HELD = (
    "import aiohttp\n\n\nclass Client:\n    async def open(self):\n        self.session = aiohttp.ClientSession()\n\n"
)
THREAD = "import threading\n\n\nclass A:\n    def start(self):\n        self.t = threading.Thread(target=self.poll"
POLL = "\n\n    def poll(self):\n        while True:\n            self.step()\n"
MAIN = "if __name__ == '__main__':\n    main()\n"
DISK = "class E:\n    def _update_weights_from_disk(self, m):\n"
ASKED = "        f = self.rollout_engine.update_weights_from_disk(m)\n        dist.barrier(group=self.g)\n"
SOCKET = "import socket\n\n\ndef f(port):\n    s = socket.socket()\n    try:\n        s.bind(('', port))\n"

CASES: dict[str, tuple[list[str], list[str]]] = {
    "iterator-used-up": (
        [
            f"{POOL}    while True:\n        for each in found:\n            check(each)\n",
            f"{POOL}    while True:\n        for each in found:\n            if check(each):\n                break\n"
            "        for each in found:\n            each.stop()\n",
            f"{POOL}    while check(1):\n        for i, each in enumerate(found):\n            check(i, each)\n",
            "def f(rows, epochs):\n    pairs = zip(rows, rows[1:])\n    for _ in range(epochs):\n"
            "        for one, other in pairs:\n            print(one, other)\n",
        ],
        [
            f"{POOL}    for each in found:\n        check(each)\n",
            f"{POOL}    found = list(found)\n    while True:\n        for each in found:\n            check(each)\n",
            "def f(rows, epochs):\n    for _ in range(epochs):\n        pairs = zip(rows, rows[1:])\n"
            "        for one, other in pairs:\n            print(one, other)\n",
            f"{POOL}    for row in jobs:\n        print(row, next(found))\n",
        ],
    ),
    "loader-cycled": (
        [
            "import itertools\n\n\ndef f(dataloader):\n    return itertools.cycle(dataloader)\n",
            "from itertools import cycle\n\n\ndef f(train_loader):\n    return cycle(train_loader)\n",
            "import itertools\n\n\nclass A:\n    def f(self):\n        return itertools.cycle(self.loader)\n",
        ],
        [
            "import itertools\n\n\ndef f(colors):\n    return itertools.cycle(colors)\n",
            "import itertools\n\n\ndef f(dataloader):\n    return itertools.islice(dataloader, 3)\n",
            "def cycle(dataloader):\n    while True:\n        yield from dataloader\n\n\n"
            "def f(dataloader):\n    return cycle(dataloader)\n",
        ],
    ),
    "session-left-open": (
        [
            f"{HELD}    async def get(self, url):\n        return await self.session.get(url)\n",
            "import httpx\n\n\nclass Client:\n    def __init__(self):\n        self.http = httpx.AsyncClient()\n",
            f"{HELD}    async def run(self, session):\n        await session.close()\n",
            HELD.replace("Client:", "Client(Base, ABC):") + "\n\nclass Base:\n    pass\n",
            f"{HELD}    async def get(self, url):\n        if self.session is None:\n            return None\n"
            "        async with self.session.get(url) as reply:\n            return reply\n",
        ],
        [
            f"{HELD}    async def close(self):\n        await self.session.close()\n",
            f"{HELD}    async def run(self):\n        async with self.session as s:\n            return s\n",
            HELD.replace("Client:", "Client(Base):")
            + "\n\nclass Base:\n    async def end(self):\n        await self.session.close()\n",
            f"{HELD}    def all(self):\n        return self.session\n",
            f"{HELD}    def end(self, stack):\n        stack.enter_async_context(self.session)\n",
        ],
    ),
    "thread-not-daemon": (
        [
            f"{THREAD})\n{POLL}",
            f"{THREAD})\n{POLL}\n    def stop(self):\n        self.t.join()\n",
            f"{THREAD}, args=())\n{POLL.replace('True', 'not self.ends')}",
            "import threading\n\n\nclass A:\n    def start(self):\n"
            "        self.t = threading.Thread(target=self.server.run)\n",
        ],
        [
            f"{THREAD}, daemon=True)\n{POLL}",
            f"{THREAD})\n        self.t.daemon = True\n{POLL}",
            f"{THREAD})\n\n    def poll(self):\n        self.step()\n",
            "import threading\n\n\nclass A:\n    def start(self):\n"
            "        self.t = threading.Thread(target=self.job.run)\n",
        ],
    ),
    "relative-in-script": (
        [
            f"# python relative_in_script_bad_0.py\nfrom .flow import main\n\n{MAIN}",
            f"# python3 -u ./relative_in_script_bad_1.py\nfrom . import flow\n\n\n{MAIN}",
            f"MORE = '''\npython -m pkg.launcher.local \\\n  "
            f"relative_in_script_bad_2.py x=1\n'''\nfrom .tools.flow import main\n\n{MAIN}",
        ],
        [
            f"# python -m relative_in_script_good_0\nfrom .flow import main\n\n{MAIN}",
            f"# python -m pytest relative_in_script_good_1.py\nfrom .flow import main\n\n{MAIN}",
            f"from flow import main\n\n{MAIN}",
            "from .flow import main\n\n\ndef f():\n    main()\n",
            f"def main():\n    from .flow import run\n\n    run()\n\n\n{MAIN}",
        ],
    ),
    "super-without-self": (
        [
            "class A(dict):\n    @staticmethod\n    def f(x):\n        return super().get(x)\n",
            "class A(B):\n    @staticmethod\n    def same(a, b):\n        return super().same(a, b) and a.x\n",
            "class A(B):\n    @staticmethod\n    def make():\n        made = super().make()\n        return made\n",
        ],
        [
            "class A(dict):\n    @classmethod\n    def f(cls, x):\n        return super().fromkeys(x)\n",
            "class A(dict):\n    def f(self, x):\n        return super().get(x)\n",
            "class A(dict):\n    @staticmethod\n    def f(x, a):\n        return super(A, a).get(x)\n",
        ],
    ),
    "lazy-at-end": (
        [
            "import re\nP = re.compile(r'(?:vllm|sglang)\\.(.+?)')\n",
            "import re\n\n\ndef f(t):\n    found = re.compile(r'a (.+?)')\n    return found.match(t)\n",
            "import re\n\n\ndef f(text):\n    return re.search(r'name: (.*?)', text)\n",
            "import re\n\n\ndef f(text):\n    return re.findall(r'<a>(?P<b>x?.+?)', text)\n",
        ],
        [
            "import re\nP = re.compile(r'(?:vllm|sglang)\\.(.+)$')\n",
            "import re\n\n\ndef f(text):\n    return re.search(r'<a>(.*?)</a>', text)\n",
            "import re\n\n\ndef f(text):\n    return re.fullmatch(r'(.+?)', text)\n",
            "import re\nP = re.compile(r'(\\d+)(\\.\\d+)?')\nQ = re.compile(r'x\\.+?')\n",
        ],
    ),
    "returns-differ": (
        [
            "def f(a, b):\n    if a > b:\n        return False\n    return True, a, b\n\n\n_, x, y = f(1, 2)\n",
            "def f(a) -> tuple[int, int]:\n    if not a:\n        return 0, None\n    if a > 1:\n"
            "        return True\n    return 1, a\n",
            "class A:\n    def f(self, a):\n        for x in a:\n            if x:\n                return x, a\n"
            "        return False\n\n    def g(self, a):\n        x, y = self.f(a)\n        return x + y\n",
        ],
        [
            "def f(a, b):\n    if a > b:\n        return False, None\n    return True, a\n\n\nx, y = f(1, 2)\n",
            "def f(a, b):\n    if a > b:\n        return None\n    return a, b\n\n\nx, y = f(1, 2)\n",
            "def f(a, b, g):\n    if a > b:\n        return False\n    if a:\n        return g()\n    return a, b\n\n\n"
            "x, y = f(1, 2, print)\n",
            "def f(a, b):\n    return a > b and (a, b)\n\n\nx, y = f(1, 2)\n",
        ],
    ),
    "barrier-on-devices": (
        [
            f"{DIST}def f(d):\n    dist.barrier(device_ids=[d.index])\n",
            f"{DIST}class A:\n    def f(self):\n        dist.barrier(device_ids=[self.d])\n",
            "import torch\n\n\ndef f(rank):\n    torch.distributed.barrier(device_ids=[rank])\n",
        ],
        [
            f"{DIST}def f(g):\n    dist.barrier(group=g)\n",
            f"{DIST}def f(d, g):\n    dist.barrier(group=g, device_ids=[d])\n",
            f"{DIST}def f():\n    dist.barrier()\n",
        ],
    ),
    "update-without-pause": (
        [
            f"{DIST}{DISK}{ASKED}",
            f"{DIST}def update_weights_from_disk(m, engine):\n    engine.rollout_engine.update_weights_from_disk(m)\n"
            "    dist.barrier(group=engine.g)\n",
        ],
        [
            f"{DIST}{DISK}        self.rollout_engine.pause_generation()\n{ASKED}",
            f"{DIST}{DISK}        self.model.load(m.path)\n        dist.barrier(group=self.g)\n",
            "class E:\n    def update_weights_from_disk(self, m):\n        self.engine.update_weights_from_disk(m)\n",
        ],
    ),
    "socket-left-open": (
        [f"{SOCKET}        s.close()\n    except OSError:\n        return False\n    return True\n"],
        [
            f"{SOCKET}    except OSError:\n        return False\n    finally:\n        s.close()\n    return True\n",
            f"{SOCKET}        s.close()\n    except OSError:\n        s.close()\n        return 0\n    return 1\n",
        ],
    ),
    "shared-row-changed": (
        [
            "class A:\n    async def run_agent(self, data, client):\n        rows = data['messages']\n"
            "        rows.append(await client.ask(rows))\n",
            "class A:\n    async def run_agent(self, data, client):\n        data = dict(data)\n"
            "        rows = data['messages']\n        rows.append(await client.ask(rows))\n",
        ],
        [
            "class A:\n    async def run_agent(self, data, client):\n        rows = data['messages'].copy()\n"
            "        rows.append(await client.ask(rows))\n",
            "class A:\n    async def run_agent(self, data, client):\n        rows = data['messages']\n"
            "        rows = [*rows, 1]\n        rows.append(await client.ask(rows))\n",
        ],
    ),
    "file-in-episode": (
        [
            "import os\n\n\nclass AWorkflow:\n    async def arun_episode(self, e, d):\n        os.makedirs(d['at'])\n",
            "class SearchAgent:\n    async def call_tool(self, path):\n        return open(path)\n",
        ],
        ["class SearchAgent:\n    def call_tool(self, path):\n        return open(path)\n"],
    ),
}


def test_each_rule_finds_its_cases_and_nothing_beside_them(shared_world):
    found = shared_world.found_in_cases(CASES)
    wanted = {rule: {f"bad_{number}" for number in range(len(bad))} for rule, (bad, _) in CASES.items()}
    assert found == wanted


def test_a_library_does_without_its_tests(world):
    world.commit(
        {"pkg/__init__.py": "", "pkg/tests/__init__.py": "", "pkg/tests/utils.py": "def in_ci():\n    return 1\n"}
    )
    used = "from pkg.tests.utils import in_ci\n\nprint(in_ci())\n"
    world.commit(
        {
            "pkg/a.py": used,
            "pkg/tests/test_a.py": used,
            "pkg/testing.py": used,
            "pkg/b.py": "def f():\n    from pkg.tests.utils import in_ci\n\n    return in_ci()\n",
        }
    )
    assert [each for each in world.found() if each[0] == "test-in-library"] == [("test-in-library", "pkg/a.py", 1)]


def test_programs_beside_a_library_may_use_tests_and_a_library_its_own_timers(world):
    world.commit(
        {"pkg/__init__.py": "", "pkg/test_time.py": "X = 1\n", "tests/__init__.py": "", "tests/utils.py": "X = 1\n"}
    )
    world.commit({"scripts/bench.py": "from tests.utils import X\n", "pkg/a.py": "from pkg.test_time import X\n"})
    assert [each for each in world.found() if each[0] == "test-in-library"] == []


def test_a_hook_starts_a_file_that_is_there(world):
    world.commit({"tools/check.py": "print(1)\n"})
    entry = "repos:\n  - hooks:\n      - entry: python tools/{}.py\n      - entry: python scripts/elsewhere.py\n"
    world.commit({".pre-commit-config.yaml": entry.format("check")})
    assert world.found() == []
    world.commit({".pre-commit-config.yaml": entry.format("header")})
    assert world.found() == [("named-file-missing", ".pre-commit-config.yaml", 3)]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "line",
    [
        "- run: cd tools && python tools/gone.py",
        "- {working-directory: x, run: python tools/gone.py}",
        "- run: print(1)  # python tools/gone.py",
        "- run: curl -o tools/gone.py https://example.org && python tools/gone.py",
        "- run: python tools/part/gone.py",
        "- run: python tools/check.py",
        "- run: bash tools/linked/gone.sh",
    ],
)
def test_a_file_that_is_elsewhere_or_comes_later_is_not_missed(world, line):
    world.write({"tools/part/tools/check.py": "print(1)\n", "deep/tools/part/gone.py": "print(1)\n"})
    (world.root / "tools/linked").symlink_to("part")
    world.commit({})
    world.commit({".github/workflows/a.yml": f"jobs:\n  {line}\n"})
    assert world.found() == []


def test_fields_of_a_base_that_came_with_a_star_are_known(world):
    world.commit(
        {
            "pkg/__init__.py": "",
            "pkg/a.py": "from dataclasses import dataclass\n\n\n@dataclass\nclass A:\n    x: int = 1\n",
        }
    )
    world.commit({"pkg/b.py": "from pkg.a import *\n\n\n@dataclass\nclass B(A):\n    y: int = 2\n"})
    text = "from pkg.b import B as Config\n\n\ndef f(config: Config):\n    return config.x, config.y, config.z\n"
    world.commit({"pkg/c.py": text})
    assert world.found() == [("unknown-attribute", "pkg/c.py", 5)]


def test_of_several_stars_the_last_one_that_gives_a_name_wins(world):
    world.commit(
        {
            "pkg/__init__.py": "",
            "pkg/a.py": "__all__ = ['load']\n\n\ndef load(x):\n    return x\n\n\ndef open(x):\n    return x\n",
            "pkg/b.py": "def load(path, size):\n    return path, size\n\n\ndef _make(x):\n    return x\n",
        }
    )
    calls = "\n\nload(1, 2)\nopen('x', 'w')\n_make(1, 2)\n"
    world.commit(
        {
            "pkg/c.py": f"from pkg.a import *\nfrom pkg.b import *\n{calls}",
            "pkg/d.py": f"from pkg.b import *\nfrom pkg.a import *\n{calls}",
            "pkg/e.py": f"from pkg.a import *\nfrom elsewhere import *\n{calls}",
        }
    )
    assert [each for each in world.found() if each[0] == "signature-mismatch"] == [
        ("signature-mismatch", "pkg/d.py", 5)
    ]


def test_modules_that_take_everything_from_each_other_are_read_once(world):
    stars = "".join(f"from pkg.m{number} import *\n" for number in range(60))
    world.commit({"pkg/__init__.py": "", **{f"pkg/m{number}.py": stars for number in range(60)}})
    world.commit({"pkg/use.py": "from pkg.m0 import *\n\ngone(1)\n"})
    assert [each for each in world.found() if each[1] == "pkg/use.py" and each[0] == "signature-mismatch"] == []
