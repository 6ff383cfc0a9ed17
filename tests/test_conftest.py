"""What every test relies on: a home of its own, no network, commands in this process, CPU budgets that are judged."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import cpu_budget
import pytest


def test_home_and_caches_are_not_the_users():
    home = Path(os.environ["HOME"])
    assert home.name.startswith("areal-tests-")
    assert all(Path(os.environ[name]).is_relative_to(home) for name in ("XDG_CACHE_HOME", "HF_HOME"))
    done = subprocess.run(["git", "config", "user.name"], cwd=home, capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_a_connection_to_another_machine_fails_the_test():
    with socket.socket() as link, pytest.raises(pytest.fail.Exception, match="mark the test `network`"):
        link.connect(("192.0.2.1", 80))
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


def command(argv):
    sys.stdout.write(f"out {Path.cwd().name} {os.environ['COLOUR']} {sys.stdin.read()}\n")
    subprocess.run([sys.executable, "-c", "import sys; print('child', file=sys.stderr)"], check=True)
    os.environ["COLOUR"] = "changed"
    if argv == ["exit"]:
        raise SystemExit("wrong")
    return 3


def test_a_command_runs_in_this_process_with_streams_of_its_own(run_command, tmp_path):
    before = Path.cwd()
    done = run_command(command, [1], cwd=tmp_path, environment={"COLOUR": "blue"}, stdin="given")
    assert (done.code, done.stdout, done.stderr) == (3, f"out {tmp_path.name} blue given\n", "child\n")
    assert (Path.cwd(), "COLOUR" in os.environ) == (before, False)
    assert run_command(command, ["exit"], environment={"COLOUR": ""}).code == 1
    assert run_command(lambda _: sys.stdout.write('{"ok": true}') and 0, []).json == {"ok": True}


def test_a_folder_counts_for_its_longest_budget():
    budgets = {"tests": 1.0, "tests/areal": 2.0, "tests/areal/api": 4.0}
    assert cpu_budget.folder_of("tests/areal/api/test_x.py", budgets) == "tests/areal/api"
    assert cpu_budget.folder_of("tests/areal/apis/test_x.py", budgets) == "tests/areal"
    assert cpu_budget.folder_of("tests/test_x.py", budgets) == "tests"


def test_a_folder_is_judged_by_its_budget_and_by_the_pace_of_the_machine():
    budgets = {"a": 10.0, "b": 20.0, "c": 40.0, "d": 20.0, "e": 40.0, "small": 4.0}
    spent = {"a": 9.0, "b": 22.0, "c": 61.0, "d": 18.0, "e": 20.0, "small": 8.9}
    warned = ["b: 22 CPU s, budget 20 (110%)", "small: 9 CPU s, budget 4 (222%)"]
    failed = ["c: 61 CPU s, budget 40 (152%)"]
    assert cpu_budget.judge(spent, budgets) == (warned, failed)
    slower = {folder: 3 * seconds for folder, seconds in spent.items()}
    found = cpu_budget.judge(slower, budgets)
    assert [[line.partition(":")[0] for line in lines] for lines in found] == [["b", "small"], ["c"]]


def test_budgets_that_add_up_to_more_than_the_aim_warn():
    warned, failed = cpu_budget.judge({"a": 1.0}, {"a": 300.0, "b": 31.0})
    assert [line.partition(":")[0] for line in warned] == ["all budgets together"]
    assert "331 CPU s, aim 330" in warned[0]
    assert failed == []
    assert cpu_budget.judge({"a": 1.0}, {"a": 300.0, "b": 30.0}) == ([], [])


def test_cheap_folders_come_first_and_slow_files_in_them(request):
    class Named(pytest.Item):
        def runtest(self):
            raise NotImplementedError

    items = []
    for name in ("dear/a", "dear/b", "dear/b", "cheap/c", "dear/a", "cheap/d"):
        file = pytest.Module.from_parent(request.session, path=request.config.rootpath / f"tests/{name}.py")
        items.append(Named.from_parent(file, name=f"test_{len(items)}"))
    items[2].add_marker("slow")
    cpu_budget.put_cheap_first(items, {"tests/dear": 5.0, "tests/cheap": 1.0})
    assert [item.name for item in items] == ["test_3", "test_5", "test_1", "test_2", "test_0", "test_4"]


def test_of_a_sampled_test_the_same_few_cases_run_and_the_others_are_exhaustive(request):
    """The first case stays, what is exhaustive anyway counts for none, and a test with fewer cases runs whole."""
    conftest = request.config.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))

    def item(name, *markers):
        made = pytest.Function.from_parent(request.node.parent, name=name, callobj=lambda: None)
        for marker in markers:
            made.add_marker(marker)
        return made

    def chosen(count):
        many = [item(f"test_many[{number}]", pytest.mark.sample(3)) for number in range(count)]
        few = [item(f"test_few[{number}]", pytest.mark.sample(3)) for number in range(2)]
        left_out = item("test_many[-1]", pytest.mark.sample(3), pytest.mark.exhaustive)
        items = [left_out, *many, *few, item("test_other")]
        conftest.take_samples(items)
        return [each.name for each in items if not each.get_closest_marker("exhaustive")]

    names = chosen(20)
    assert [name.partition("[")[0] for name in names] == ["test_many"] * 3 + ["test_few"] * 2 + ["test_other"]
    assert names[0] == "test_many[0]"
    assert len({*chosen(21), *names}) <= len(names) + 1
