"""What rank 0 asks for happens on all ranks; whoever fails or ends is named, and nobody waits for ever."""

import secrets
import socket
import tempfile
import threading
import time
from importlib import import_module
from multiprocessing.connection import Connection
from operator import methodcaller
from pathlib import Path

import pytest

from areal.api import EngineError
from areal.trainer import rank_group as rank_group_module
from areal.trainer import run as processes
from areal.trainer.rank_group import RankGroup
from areal.trainer.run import accept_rank, join_rank_zero

PATIENCE = 1.5
OTHER_RANK = Path(__file__).with_name("serve_rank.py")


class Ranks:
    """A group led by this process, and its other ranks in processes of their own, each in a folder of its own."""

    def __init__(self, folder, count, fork_server):
        self.folders, self.processes, self.links = [], [], []
        for rank in range(1, count + 1):
            self.folders.append(folder / str(rank))
            self.folders[-1].mkdir()
            with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as listener:
                address = f"{place}/rank"  # the name of a socket is short
                listener.bind(address)
                listener.listen()
                listener.settimeout(60)
                arguments = [address, str(PATIENCE)]
                self.processes.append(fork_server.start(OTHER_RANK, arguments, folder=self.folders[-1]))
                self.links.append(Connection(listener.accept()[0].detach()))
        self.group = RankGroup(self.links)

    def create_module(self, name, *texts):
        """An object that is another module on each rank."""
        for folder, text in zip([Path(), *self.folders], texts, strict=True):
            (folder / f"{name}.py").write_text(text)
        return self.group.create(import_module, name)

    def end(self, rank):
        """Exit code and stderr of a rank that is about to end."""
        process = self.processes[rank - 1]
        return process.wait(60), process.stderr


@pytest.fixture
def ranks(tmp_path, monkeypatch, fork_server):
    """`ranks(count)`: a group with that many other ranks; all work in folders where relative paths are their own."""
    monkeypatch.setattr(rank_group_module, "ALIKE_SECONDS", PATIENCE)
    (tmp_path / "0").mkdir()
    monkeypatch.chdir(tmp_path / "0")
    monkeypatch.syspath_prepend(str(tmp_path / "0"))
    made = []

    def make(count):
        made.append(Ranks(tmp_path, count, fork_server))
        return made[-1]

    yield make
    for item in made:
        item.group.end(0)
        for process in item.processes:
            process.kill()


def test_a_group_of_one_runs_everything_here_without_copies():
    group, value = RankGroup(), [object()]
    found = group.create(list)
    assert found.local == []
    found.run(list.append, value)
    assert found.run(list.pop) is value
    found.drop()
    with pytest.raises(KeyError):
        found.run(list.pop)
    assert group.num_ranks == 1


def test_every_rank_does_what_rank_0_asks_for_and_rank_0_has_the_result(ranks):
    found = ranks(2)
    group = found.group
    assert group.num_ranks == 3
    told = group.create(Path, "told")
    assert told.local == Path("told")
    assert told.run(Path.write_text, "first", encoding="utf-8") == 5
    assert [(folder / "told").read_text() for folder in found.folders] == ["first", "first"]
    other = group.create(Path, "other")
    other.run(Path.touch)
    assert all((folder / "other").exists() for folder in found.folders)
    assert told.run(Path.read_text) == "first"
    other.drop()
    with pytest.raises(KeyError):
        other.run(Path.touch)
    group.end(7)
    assert [found.end(rank)[0] for rank in (1, 2)] == [7, 7]


@pytest.mark.exhaustive
def test_an_error_of_all_ranks_is_that_of_rank_0_and_all_go_on(ranks):
    file = ranks(2).group.create(Path, "missing")
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            file.run(Path.read_text)
    file.run(Path.touch)
    # No rank took the pause for a failure of its own.
    time.sleep(2 * PATIENCE)
    assert file.run(Path.read_text) == ""


def test_an_error_of_rank_0_alone_leaves_the_others_ready(ranks):
    found = ranks(2)
    file = found.group.create(Path, "present")
    for folder in found.folders:
        (folder / "present").touch()
    with pytest.raises(FileNotFoundError):
        file.run(Path.read_text)
    file.run(Path.write_text, "now")
    assert file.run(Path.read_text) == "now"


@pytest.mark.exhaustive
def test_an_error_of_another_rank_alone_names_it_and_ends_the_group(ranks):
    found = ranks(2)
    file = found.group.create(Path, "present")
    for folder in (Path(), found.folders[0]):
        (folder / "present").touch()
    with pytest.raises(EngineError, match=r"rank 2 failed in Path\.read_text: FileNotFoundError: .*'present'"):
        file.run(Path.read_text)
    with pytest.raises(EngineError, match="no longer work together: rank 2 failed"):
        file.run(Path.touch)
    code, errors = found.end(2)
    assert code == 1
    assert "this rank failed and rank 0 did not" in errors
    assert found.processes[0].returncode is None
    found.group.end(3, reason="DataError: no rows")
    code, errors = found.end(1)
    assert code == 3
    assert "rank 0 ends the run with exit code 3: DataError: no rows" in errors


@pytest.mark.exhaustive
def test_a_rank_that_failed_alone_is_the_culprit_of_what_its_end_breaks(ranks):
    """Rank 0 and rank 2 wait for rank 1 inside a command, until its end fails them."""
    found = ranks(2)
    waits = (
        "import time\nfrom pathlib import Path\n"
        "def run(pid):\n"
        "    while Path(f'/proc/{pid}').exists():\n"
        "        time.sleep(0.02)\n"
        "    raise ConnectionError('rank 1 closed the connection')\n"
    )
    step = found.create_module("step_together", waits, "def run(pid):\n    raise ValueError('no room')\n", waits)
    with pytest.raises(EngineError, match=r"rank 1 failed in operator.methodcaller.*: ValueError: no room") as error:
        step.run(methodcaller("run", found.processes[0].pid))
    assert isinstance(error.value.__cause__, ConnectionError)


def test_a_rank_that_was_killed_while_idle_is_named(ranks):
    found = ranks(2)
    items = found.group.create(list)
    found.processes[1].kill()
    with pytest.raises(EngineError, match="connection to rank 2 lost"):
        items.run(list.append, 1)


def test_a_rank_that_is_killed_at_work_is_named_at_once(ranks):
    found = ranks(2)
    sleeps = "import time\ndef run():\n    time.sleep(600)\n"
    step = found.create_module("long_step", "def run():\n    pass\n", "def run():\n    pass\n", sleeps)
    killer = threading.Timer(0.3, found.processes[1].kill)
    killer.start()
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"connection to rank 2 lost during operator\.methodcaller"):
        step.run(methodcaller("run"))
    assert time.monotonic() - began < 60
    killer.join()


def test_the_other_ranks_end_when_rank_0_is_gone(ranks):
    found = ranks(1)
    found.group.create(Path, "told")
    for link in found.links:
        link.close()
    code, errors = found.end(1)
    assert code == 1
    assert "EngineError: connection to rank 0 lost" in errors


def test_threads_take_turns_and_all_ranks_see_one_order(ranks):
    found = ranks(1)
    out = found.group.create(open, "told", "a")

    def write(letter):
        for _ in range(50):
            out.run(methodcaller("write", letter))

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.run(methodcaller("close"))
    ours, theirs = Path("told").read_text(), (found.folders[0] / "told").read_text()
    assert (ours, len(ours)) == (theirs, 100)


def test_commands_inside_commands_are_refused():
    group = RankGroup()
    found = group.create(list)
    with pytest.raises(EngineError, match="cannot run another command"):
        found.run(lambda _: found.run(list.pop))


def test_what_cannot_be_sent_harms_nobody(ranks):
    items = ranks(1).group.create(list)
    with pytest.raises((TypeError, AttributeError), match="pickle"):
        items.run(list.append, lambda: None)
    items.run(list.append, 1)
    assert items.run(list.pop) == 1


def handshake(their_key):
    """What each side has after a visitor with `their_key` came."""
    key, outcome = b"k" * 32, {}
    with socket.create_server(("127.0.0.1", 0)) as server:

        def visit():
            try:
                outcome["link"] = join_rank_zero(socket.create_connection(server.getsockname()), their_key or key, 3)
            except EngineError as error:
                outcome["error"] = str(error)

        visitor = threading.Thread(target=visit)
        visitor.start()
        found = accept_rank(server.accept()[0], key)
        visitor.join()
    return found, outcome


def test_only_who_has_the_key_is_admitted():
    found, outcome = handshake(None)
    assert found[0] == 3
    outcome["link"].send("hello")
    assert found[1].recv() == "hello"
    found[1].close()
    outcome["link"].close()
    found, outcome = handshake(secrets.token_bytes(32))
    assert found is None
    assert "does not belong to this run" in outcome["error"]


def test_a_stranger_that_says_nothing_keeps_the_ranks_waiting_for_a_moment_only(monkeypatch):
    monkeypatch.setattr(processes, "_AUTHENTICATE_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        began = time.monotonic()
        assert accept_rank(server.accept()[0], b"k" * 32) is None
    assert time.monotonic() - began < 60


def test_a_rank_that_never_connects_is_named(monkeypatch):
    monkeypatch.setattr(processes, "_CONNECT_SECONDS", 0.2)
    monkeypatch.setattr("torch.distributed.broadcast_object_list", lambda *_, **__: None)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(EngineError, match=r"ranks \[1, 2\] did not connect within 0.2 s"):
        processes._accept_ranks(2)
