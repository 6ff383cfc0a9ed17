"""A unit is written, proven or failed: its receipt says which, whatever ended the run, and everybody tells.

A shell script takes the place of the interpreter; one test runs pytest.
"""

from __future__ import annotations

import json

import pytest

from tooling.kit.kind import CheckResult
from tooling.kit.receipts import Proof, read_receipt
from tooling.new.proof import proof_of

MODULE = "shop/rules/half_off.py"
TEST = "tests/test_half_off.py"
REGISTRY = "shop/rules/registry.py"
PASSES = "echo '3 passed, 1 warning in 0.01s'"
FAILS = "echo '1 failed, 2 passed in 0.01s'; exit 1"
NEVER = "touch asked; exit 1"


def proof(world, name="half_off"):
    return read_receipt(world.root, "rule", name).proof


def state(world):
    """What `areal-new status` calls the unit."""
    (unit,) = world.units("rule", "half_off")
    return unit.state


def with_a_table_of_the_unproven(world):
    world.write(REGISTRY, world.read(REGISTRY) + "\nUNPROVEN: Final[tuple[str, ...]] = (\n    # kept by areal-new\n)\n")
    entry = f'\n[[unproven]]\nfile = "{REGISTRY}"\nshape = "sequence"\ntable = "UNPROVEN"\nkey = "{{{{ key }}}}"\n'
    world.write("templates/rule/template.toml", world.read("templates/rule/template.toml") + entry)
    world.commit()
    return world.tree()


def unproven(world):
    namespace = {}
    exec(world.read(REGISTRY), namespace)
    return namespace["UNPROVEN"]


# ------------------------------------------------------------------------------------------------- how a run can end


def test_tests_that_pass_prove_the_unit(world, run):
    world.interpreter(PASSES)
    done = run(world.root, "rule", "half_off")
    assert (done.code, "rule half_off: proven (3 passed)" in done.stdout) == (0, True)
    found = proof(world)
    assert (found.state, found.tests, found.outcomes) == ("proven", (TEST,), {"passed": 3})
    assert state(world) == "clean"


def test_an_interrupted_proof_is_finished_by_the_same_command(world, run):
    assert world.interrupted("rule", "half_off")[0] == 130
    assert (proof(world), state(world)) == (Proof(), "written")
    assert "written, not proven; `areal-new prove rule half_off` runs its tests" in run(world.root, "status").stdout
    world.interpreter(PASSES)
    again = run(world.root, "rule", "half_off")
    assert (again.code, "nothing to do" in again.stdout) == (0, False)
    assert "rule half_off: proven (3 passed)" in again.stdout
    assert (proof(world).state, state(world)) == ("proven", "clean")
    world.interpreter(NEVER)
    assert run(world.root, "rule", "half_off").stdout.startswith("nothing to do\n")
    assert not (world.root / "asked").exists()


def test_failed_tests_are_corrected_and_run_again(world, run):
    world.interpreter(FAILS)
    done = run(world.root, "rule", "half_off")
    assert done.code == 7
    assert "the files stay, not proven" in done.stderr
    assert "`areal-new prove rule half_off`" in done.stderr
    assert (proof(world).state, proof(world).outcomes, state(world)) == ("failed", {"failed": 1, "passed": 2}, "failed")
    assert "written, its tests failed (1 failed, 2 passed)" in run(world.root, "status").stdout
    world.edit(MODULE, "return result", "return max(result, 0.0)")
    assert "1 failed, 2 passed); edited since" in run(world.root, "list").stdout
    world.interpreter(PASSES)
    assert run(world.root, "prove", "rule", "Half-Off").code == 0
    assert (proof(world).state, state(world)) == ("proven", "edited")


def test_without_tests_it_is_written_and_every_reader_says_so(world, run):
    done = run(world.root, "rule", "half_off", "--no-test")
    said = "written, not proven"
    assert (done.code, f"rule half_off: {said}" in done.stdout) == (0, True)
    for words in (["status"], ["list"], ["explain", "rule", "half_off"]):
        assert said in run(world.root, *words).stdout, words
        (found,) = _proofs(json.loads(run(world.root, *words, "--json").stdout))
        assert (found["state"], found["summary"]) == ("written", said)


def _proofs(document):
    return [document["explanation"]["proof"]] if "explanation" in document else [u["proof"] for u in document["units"]]


def test_an_interpreter_that_is_not_there_leaves_a_written_unit(world, run):
    world.interpreter("exit 0").chmod(0o644)
    done = run(world.root, "rule", "half_off")
    assert done.code == 2
    assert "the files are written, the proof is not: cannot start" in done.stderr
    assert state(world) == "written"


@pytest.mark.parametrize(
    ("outcomes", "ok", "expected"),
    [
        ({"passed": 2, "skipped": 1}, True, "proven"),
        ({}, True, "proven"),
        ({"skipped": 3}, True, "written"),
        ({"passed": 2, "xfailed": 1}, True, "written"),
        ({"failed": 1, "passed": 2}, False, "failed"),
        ({}, False, "failed"),
    ],
)
def test_tests_that_compare_nothing_prove_nothing(outcomes, ok, expected):
    assert proof_of(["test_x.py"], CheckResult("tests", ok, 1.0, outcomes=outcomes), "0" * 64).state == expected
    assert proof_of([], CheckResult("tests", True, 0.0), "0" * 64).state == "written"


@pytest.mark.exhaustive
def test_pytest_itself_is_understood(world, run):
    assert run(world.root, "rule", "half_off").code == 0
    assert (proof(world).state, proof(world).outcomes) == ("proven", {"passed": 1})


def test_a_unit_that_changes_while_its_tests_run_is_not_proven_by_them(world, run):
    world.interpreter(f"echo '# meanwhile' >> {MODULE}; {PASSES}")
    done = run(world.root, "rule", "half_off")
    assert done.code == 3
    assert "changed while its tests ran" in done.stderr
    assert proof(world) == Proof()


# ---------------------------------------------------------------------------------------------------------- afterwards


def test_an_edit_ends_the_proof_until_the_tests_pass_again(made, run):
    made.edit(MODULE, "return result", "return max(result, 0.0)")
    assert "edited since it was proven" in run(made.root, "status").stdout
    made.interpreter(PASSES)
    assert run(made.root, "prove", "rule", "half_off").code == 0
    (unit,) = made.units("rule", "half_off")
    assert (unit.state, unit.proof.state, unit.proof.current) == ("edited", "proven", True)
    made.interpreter(NEVER)
    assert "nothing to do" in run(made.root, "prove", "--all").stdout
    assert not (made.root / "asked").exists()


def test_all_units_are_proven_each_by_its_own_tests(made, run):
    made.generate("fifth_off")
    made.generate("tenth_off")
    made.interpreter(f"case $* in *fifth*) {FAILS};; *half*) exit 3;; esac; {PASSES}")
    done = run(made.root, "prove", "--all")
    assert done.code == 7
    assert {name: proof(made, name).state for name in ("fifth_off", "half_off", "tenth_off")} == {
        "fifth_off": "failed",
        "half_off": "proven",
        "tenth_off": "proven",
    }
    assert "run `areal-new prove rule fifth_off`" in done.stderr
    assert run(made.root, "prove").code == 2
    assert run(made.root, "prove", "rule", "half_off", "--all").code == 2


@pytest.mark.exhaustive
def test_what_changes_files_ends_the_proof_unless_its_tests_ran(made, run):
    made.interpreter(PASSES)
    assert run(made.root, "update", "rule", "half_off", "--percent", "20", "--no-test").code == 0
    assert (proof(made), state(made)) == (Proof(), "written")
    assert "is written, not proven" in run(made.root, "update", "--all").stderr
    assert run(made.root, "update", "rule", "half_off", "--percent", "30").code == 0
    assert (proof(made).state, state(made)) == ("proven", "clean")
    assert run(made.root, "rename", "rule", "half_off", "third_off", "--no-test").code == 0
    assert proof(made, "third_off") == Proof()
    assert run(made.root, "rename", "rule", "third_off", "half_off").code == 0
    assert proof(made).state == "proven"
    made.edit(MODULE, "return result", "return max(result, 0.0)")
    assert run(made.root, "undo", "rule", "half_off").code == 4
    assert proof(made) == Proof()


def test_an_update_that_leaves_the_bytes_alone_leaves_the_proof(made, run):
    before = proof(made)
    made.edit("templates/rule/template.toml", "a rule on prices", "a rule about prices")
    made.interpreter(NEVER)
    done = run(made.root, "update", "--all")
    assert (done.code, proof(made)) == (0, before)
    assert not (made.root / "asked").exists()


def test_staged_tests_prove_what_is_written_afterwards(world, run):
    world.interpreter(PASSES)
    before = with_a_table_of_the_unproven(world)
    assert run(world.root, "rule", "half_off", "--test", "staged", "--dry-run").code == 0
    assert world.tree() == before
    assert run(world.root, "rule", "half_off", "--test", "staged").code == 0
    assert (proof(world).state, state(world), unproven(world)) == ("proven", "clean", ())


def test_a_saved_plan_can_be_applied_again_after_its_proof(world, tmp_path, run):
    world.interpreter(PASSES)
    with_a_table_of_the_unproven(world)
    plan = tmp_path / "plan.json"
    assert run(world.root, "rule", "half_off", "--plan-out", plan).code == 0
    assert run(world.root, "apply", plan, "--no-test").code == 0
    assert (proof(world).state, unproven(world)) == ("written", ("half_off",))
    assert run(world.root, "apply", plan).code == 0
    assert (proof(world).state, unproven(world)) == ("proven", ())
    assert "nothing to do" in run(world.root, "apply", plan).stdout


# ------------------------------------------------------------------------------- entries that stand until the proof


def test_an_entry_stands_in_the_registry_until_the_tests_have_passed(world, run):
    before = with_a_table_of_the_unproven(world)
    assert world.interrupted("rule", "half_off")[0] == 130
    assert (unproven(world), state(world)) == (("half_off",), "written")
    world.interpreter(FAILS)
    assert run(world.root, "prove", "rule", "half_off").code == 7
    assert unproven(world) == ("half_off",)
    world.interpreter(PASSES)
    done = run(world.root, "prove", "rule", "half_off")
    assert (done.code, "UNPROVEN half_off" in done.stdout, unproven(world)) == (0, True, ())
    assert state(world) == "clean"
    assert run(world.root, "update", "rule", "half_off", "--percent", "20", "--no-test").code == 0
    assert unproven(world) == ("half_off",)
    assert run(world.root, "rename", "rule", "half_off", "third_off", "--no-test").code == 0
    assert unproven(world) == ("third_off",)
    assert run(world.root, "undo", "rule", "third_off").code == 0
    (world.root / ".venv/bin/python").unlink()
    (world.root / ".venv/bin").rmdir()
    (world.root / ".venv").rmdir()
    assert world.tree() == before


def test_a_unit_outside_the_registries_has_no_such_entry(world, run):
    with_a_table_of_the_unproven(world)
    assert run(world.root, "rule", "half_off", "--no-register", "--no-test").code == 0
    assert unproven(world) == ()


# ------------------------------------------------------------------------------------------- families must be proven


@pytest.fixture
def proven_or_gone(monkeypatch):
    """Every new unit must be proven, as a model family must; `further` is what holds besides its tests."""
    from tooling.new.commands import generate

    plan, further = generate.plan_unit, []

    def planned(project, request):
        change = plan(project, request)
        change.must_prove = True
        change.further_proof = (lambda: further[0]) if further else None
        return change

    monkeypatch.setattr(generate, "plan_unit", planned)
    return further


def test_a_unit_that_must_be_proven_is_taken_back_when_its_tests_fail(world, run, proven_or_gone):
    world.interpreter(FAILS)
    before = world.tree()
    done = run(world.root, "rule", "half_off")
    assert done.code == 7
    assert "nothing is left of it; see the output above; --keep leaves the files" in done.stderr
    assert world.tree() == before


def test_what_has_to_hold_besides_the_tests_is_part_of_the_proof(world, run, proven_or_gone):
    from tooling.kit.kind import CheckResult

    world.interpreter(PASSES)
    before = world.tree()
    proven_or_gone.append(CheckResult("checkpoint", False, 0.1, "the folder is not loaded"))
    refused = run(world.root, "rule", "half_off")
    assert (refused.code, world.tree()) == (7, before)
    assert "the folder is not loaded" in refused.stdout + refused.stderr
    proven_or_gone[0] = CheckResult("checkpoint", True, 0.1, "")
    assert run(world.root, "rule", "half_off").code == 0
    assert proof(world).state == "proven"


def test_what_changed_while_the_tests_ran_is_not_taken_back(world, run, proven_or_gone):
    world.interpreter(f"echo '# mine' >> '{world.root / REGISTRY}'; {FAILS}")
    done = run(world.root, "rule", "half_off")
    assert done.code == 7
    assert "the files stay: " in done.stdout + done.stderr
    assert (world.root / TEST).is_file()
