"""What rank 0 asks for happens on all ranks; whoever fails or ends is named, and nobody waits for ever."""

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from areal.api import EngineError
from areal.trainer import crew as crew_module
from areal.trainer.crew import Crew
from areal.trainer.processes import admit, introduce

PATIENCE = 0.5
FOLLOWER = (
    "import sys\n"
    "from multiprocessing.connection import Connection\n"
    "from areal.trainer import crew\n"
    f"crew.ALIKE_SECONDS = {PATIENCE}\n"
    "raise SystemExit(crew.follow(Connection(int(sys.argv[1]))))\n"
)


class Ranks:
    """A crew in this process, and its followers in processes of their own, each in a folder of its own."""

    def __init__(self, folder, count):
        self.folders, self.processes, links = [], [], []
        for rank in range(1, count + 1):
            ours, theirs = socket.socketpair()
            self.folders.append(folder / str(rank))
            self.folders[-1].mkdir()
            command = [sys.executable, "-c", FOLLOWER, str(theirs.fileno())]
            self.processes.append(
                subprocess.Popen(
                    command, cwd=self.folders[-1], pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                )
            )  # fmt: skip
            theirs.close()
            links.append(Connection(ours.detach()))
        self.links = links
        self.crew = Crew(links)

    def create_module(self, name, *texts):
        """A target that is another module on each rank."""
        for folder, text in zip([Path(), *self.folders], texts, strict=True):
            (folder / f"{name}.py").write_text(text)
        self.crew.create(name, import_module, name)

    def end(self, rank):
        """Exit code and stderr of a follower that is about to end."""
        process = self.processes[rank - 1]
        _, errors = process.communicate(timeout=30)
        return process.returncode, errors


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """`ranks(count)`: a crew with that many followers; all work in folders where relative paths are their own."""
    monkeypatch.setattr(crew_module, "ALIKE_SECONDS", PATIENCE)
    (tmp_path / "0").mkdir()
    monkeypatch.chdir(tmp_path / "0")
    monkeypatch.syspath_prepend(str(tmp_path / "0"))
    made = []

    def make(count):
        made.append(Ranks(tmp_path, count))
        return made[-1]

    yield make
    for item in made:
        item.crew.end(0)
        for process in item.processes:
            process.kill()
            process.communicate()


def test_a_crew_of_one_does_everything_here_without_copies():
    crew, value = Crew(), [object()]
    assert crew.create("list", list) == []
    crew.call("list", "append", value)
    assert crew.call("list", "pop") is value
    crew.drop("list")
    with pytest.raises(KeyError):
        crew.call("list", "pop")
    assert crew.num_ranks == 1


def test_every_rank_does_what_rank_0_asks_for_and_rank_0_has_the_result(ranks):
    found = ranks(2)
    crew = found.crew
    assert crew.num_ranks == 3
    assert crew.create("file", Path, "told") == Path("told")
    assert crew.call("file", "write_text", "first", encoding="utf-8") == 5
    assert [(folder / "told").read_text() for folder in found.folders] == ["first", "first"]
    # Methods of attributes; an object takes the place of an older one of its name.
    assert crew.call("file", "parent.mkdir", exist_ok=True) is None
    crew.create("file", Path, "other")
    crew.call("file", "touch")
    assert all((folder / "other").exists() for folder in found.folders)
    crew.drop("file")
    with pytest.raises(KeyError):
        crew.call("file", "touch")
    crew.end(7)
    assert [found.end(rank)[0] for rank in (1, 2)] == [7, 7]


def test_an_error_of_all_ranks_is_that_of_rank_0_and_all_go_on(ranks):
    found = ranks(2)
    found.crew.create("file", Path, "missing")
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            found.crew.call("file", "read_text")
    found.crew.call("file", "touch")
    # Nobody took the pause for a farewell.
    time.sleep(2 * PATIENCE)
    assert found.crew.call("file", "read_text") == ""


def test_an_error_of_rank_0_alone_leaves_the_others_ready(ranks):
    found = ranks(2)
    found.crew.create("file", Path, "present")
    for folder in found.folders:
        (folder / "present").touch()
    with pytest.raises(FileNotFoundError):
        found.crew.call("file", "read_text")
    found.crew.call("file", "write_text", "now")
    assert found.crew.call("file", "read_text") == "now"


def test_an_error_of_another_rank_alone_names_it_and_ends_the_crew(ranks):
    found = ranks(2)
    found.crew.create("file", Path, "present")
    for folder in (Path(), found.folders[0]):
        (folder / "present").touch()
    with pytest.raises(EngineError, match=r"rank 2 failed in file\.read_text: FileNotFoundError: .*'present'"):
        found.crew.call("file", "read_text")
    with pytest.raises(EngineError, match="no longer work together: rank 2 failed"):
        found.crew.call("file", "touch")
    code, errors = found.end(2)
    assert code == 1
    assert "this rank failed and rank 0 did not" in errors
    assert found.processes[0].poll() is None
    found.crew.end(3, why="DataError: no rows")
    code, errors = found.end(1)
    assert code == 3
    assert "rank 0 ends the run with exit code 3: DataError: no rows" in errors


def test_a_rank_that_failed_alone_is_the_culprit_of_what_its_end_breaks(ranks):
    """Rank 0 and rank 2 wait for rank 1 inside a command, until its end fails them."""
    found = ranks(2)
    waits = (
        "import time\nfrom pathlib import Path\n"
        "def run(pid):\n"
        "    while Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z':\n"
        "        time.sleep(0.02)\n"
        "    raise ConnectionError('rank 1 closed the connection')\n"
    )
    found.create_module("step_together", waits, "def run(pid):\n    raise ValueError('no room')\n", waits)
    with pytest.raises(EngineError, match=r"rank 1 failed in step_together\.run: ValueError: no room") as error:
        found.crew.call("step_together", "run", found.processes[0].pid)
    assert isinstance(error.value.__cause__, ConnectionError)


def test_a_rank_that_was_killed_while_idle_is_named(ranks):
    found = ranks(2)
    found.crew.create("list", list)
    found.processes[1].kill()
    found.processes[1].wait()
    with pytest.raises(EngineError, match="rank 2 has ended"):
        found.crew.call("list", "append", 1)


def test_a_rank_that_is_killed_at_work_is_named_at_once(ranks):
    found = ranks(2)
    sleeps = "import time\ndef run():\n    time.sleep(600)\n"
    found.create_module("long_step", "def run():\n    pass\n", "def run():\n    pass\n", sleeps)
    killer = threading.Timer(0.3, found.processes[1].kill)
    killer.start()
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"rank 2 has ended during long_step\.run"):
        found.crew.call("long_step", "run")
    assert time.monotonic() - began < 10
    killer.join()


def test_followers_end_when_rank_0_is_gone(ranks):
    found = ranks(1)
    found.crew.create("file", Path, "told")
    for link in found.links:
        link.close()
    code, errors = found.end(1)
    assert code == 1
    assert "EngineError: rank 0 has ended without a word" in errors


def test_threads_take_turns_and_all_ranks_see_one_order(ranks):
    found = ranks(1)
    found.crew.create("out", open, "told", "a")

    def write(letter):
        for _ in range(50):
            found.crew.call("out", "write", letter)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.crew.call("out", "close")
    ours, theirs = Path("told").read_text(), (found.folders[0] / "told").read_text()
    assert (ours, len(ours)) == (theirs, 100)


def test_commands_inside_commands_are_refused():
    crew = Crew()
    crew.create("crew", lambda: crew)
    with pytest.raises(EngineError, match="may not give commands itself"):
        crew.call("crew", "drop", "crew")


def test_what_cannot_be_sent_harms_nobody(ranks):
    found = ranks(1)
    found.crew.create("list", list)
    with pytest.raises((TypeError, AttributeError), match="pickle"):
        found.crew.call("list", "append", lambda: None)
    found.crew.call("list", "append", 1)
    assert found.crew.call("list", "pop") == 1


def handshake(their_key):
    """What each side has after a visitor with `their_key` came."""
    key, outcome = b"k" * 32, {}
    with socket.create_server(("127.0.0.1", 0)) as server:

        def visit():
            try:
                outcome["link"] = introduce(socket.create_connection(server.getsockname()), their_key or key, 3)
            except EngineError as error:
                outcome["error"] = str(error)

        visitor = threading.Thread(target=visit)
        visitor.start()
        found = admit(server.accept()[0], key)
        visitor.join()
    return found, outcome


def test_only_who_has_the_key_is_admitted():
    found, outcome = handshake(None)
    assert found[0] == 3
    outcome["link"].send("hello")
    assert found[1].recv() == "hello"
    found, outcome = handshake(secrets.token_bytes(32))
    assert found is None
    assert "does not belong to this run" in outcome["error"]
