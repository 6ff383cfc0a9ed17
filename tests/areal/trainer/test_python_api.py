"""Training from Python: what keywords, functions and rows become, and what comes back."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import runs

import areal
from areal import stats
from areal.api import ArealError, ConfigError, DataError, FinishedError, GenerationConfig, UsageError
from areal.cli.main import main
from areal.engine.config import TrainEngineConfig
from areal.reward.exact import exact_reward
from areal.trainer.configuration.source import load_config
from areal.trainer.object_fingerprint import fingerprint_object
from areal.utils.given import given

MODEL = runs.BASE["model.init"]
TOKENIZER = runs.BASE["model.tokenizer_path"]
ROWS = [{"prompt": f"{a}*{b}=", "answer": str(a * b)} for a in range(2, 6) for b in range(2, 6)]
PAIRS = [{"prompt": row["prompt"], "chosen": row["answer"], "rejected": "99"} for row in ROWS]


def common(folder, **more):
    """Keywords of a tiny run in a folder."""
    return {
        "model": MODEL,
        "tokenizer_path": TOKENIZER,
        "output_dir": str(folder),
        "total_train_steps": 2,
        "num_threads": 1,
        "metrics": {"progress": False},
        **more,
    }


def rl(folder, reward, **more):
    """Keywords of a tiny RL run."""
    own = {
        "train": ROWS,
        "gconfig": {"max_new_tokens": 4},
        "rollout": {"batch_size": 4, "group_size": 4, "max_head_offpolicyness": 0},
        "engine": {"max_seq_len": 64},
    }
    return common(folder, reward=reward, **own | more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run whose rewards no other process can import."""
    bonus = 0.25

    def close(prompt, completion, prompt_ids, completion_ids, *, answer, **row):
        return bonus * (completion[:1] == answer[:1])

    folder = tmp_path_factory.mktemp("python") / "run"
    rewards = {"exactly": {"path": lambda prompt, completion, *ids, answer, **row: completion == answer}, close: 0.5}
    return areal.GRPO(**rl(folder, rewards, eval_sets={"held-out": ROWS[:4]})).train()


@pytest.mark.exhaustive
def test_a_lambda_and_a_nested_function_reward_a_run_like_any_other(trained):
    assert trained.finished
    assert trained.summary["steps"] == 2
    assert (trained.checkpoint / "model.safetensors").is_file()
    assert trained.best_checkpoint == trained.checkpoint
    last = trained.metrics[-1]
    assert last["step"] == 2
    assert math.isclose(
        last["reward/mean"], last["reward/exactly/mean"] + 0.5 * last["reward/close/mean"], abs_tol=1e-6
    )
    assert trained.metrics.column("train/loss")
    assert "eval/held-out/avg@1" in last
    with pytest.raises(UsageError, match="no step has the metric 'rewards'"):
        trained.metrics.column("rewards")


def test_metrics_become_a_table_of_pandas(trained):
    pytest.importorskip("pandas")
    frame = trained.metrics.to_pandas()
    assert list(frame["step"]) == [0, 1, 2]
    assert frame["reward/mean"].iloc[-1] == trained.metrics[-1]["reward/mean"]


def test_the_file_names_what_cannot_be_imported_and_is_read_back_equal(trained, tmp_path):
    text = trained.config.to_yaml()
    head = text[: text.index("kind: rl")]
    assert "Not importable" in head
    assert "reward.exactly.path: exactly" in head
    assert "reward: close" in head
    (tmp_path / "run.yaml").write_text(text)
    assert load_config(tmp_path / "run.yaml").config == trained.config.values
    with given({}), pytest.raises(ConfigError, match="no file defines it"):
        areal.GRPO(**rl(tmp_path / "again", trained.config.reward)).train()


@pytest.mark.exhaustive
def test_it_generates_from_texts_and_the_same_seed_gives_the_same(trained):
    first, second = (
        trained.generate(["2*3=", "2*3="], max_new_tokens=3),
        trained.generate(["2*3="] * 2, max_new_tokens=3),
    )
    assert first == second
    assert all(len(text) <= 3 * len("<pad>") for text in first)
    assert len({*trained.generate(["2*3="] * 8)}) > 1, "samples of one prompt differ"
    with pytest.raises(ConfigError, match=r"gconfig\.max_tokens .*did you mean gconfig\.max_new_tokens"):
        trained.generate("2*3=", max_tokens=3)


@pytest.mark.exhaustive
def test_it_evaluates_own_sets_and_those_of_the_run(trained):
    own = {"own": {"dataset": ROWS[:2], "reward": lambda prompt, completion, *ids, **row: 1.0}}
    report = trained.evaluate(own)
    assert report["sets"]["own"]["metrics"]["avg@1"]["mean"] == 1.0
    assert report["sets"]["own"]["rows"] == 2
    assert set(trained.evaluate(["held-out"])["sets"]) == {"held-out"}
    with pytest.raises(UsageError, match="no evaluation set 'held-in'"):
        trained.evaluate(["held-in"])


@pytest.mark.exhaustive
def test_a_finished_run_says_so_and_an_edited_lambda_is_refused_until_it_starts_over(tmp_path):
    def run(reward):
        return areal.GRPO(**rl(tmp_path / "run", {"mine": {"path": reward}}, total_train_steps=1))

    run(lambda prompt, completion, *ids, **row: 1.0 if completion else 0.0).train()
    with pytest.raises(FinishedError, match="already finished"):
        run(lambda prompt, completion, *ids, **row: 1.0 if completion else 0.0).train()  # a comment changes nothing
    edited = run(lambda prompt, completion, *ids, **row: 2.0 if completion else 0.0)
    with pytest.raises(ConfigError, match=r"code was changed .*\n.*mine"):
        edited.train()
    assert edited.train(restart=True).finished
    assert (tmp_path / "run" / "archived").is_dir()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("make", "rows", "more"),
    [
        (areal.SFT, ROWS, {}),
        (areal.DPO, PAIRS, {"preference": {"loss": "ipo"}}),
        (areal.RewardModel, PAIRS, {"center_coef": 0.01}),
    ],
)
def test_runs_on_rows_take_a_list_and_return_the_same_kind_of_result(make, rows, more, tmp_path):
    result = make(**common(tmp_path / "run", train=rows, batch_size=4, **more)).train()
    assert result.finished
    assert result.metrics[-1]["step"] == 2
    assert result.checkpoint.is_dir()
    if make is areal.SFT:
        assert len(result.generate(["2*3=", "2*4="], max_new_tokens=2)) == 2
        report = result.evaluate({"test": ROWS[:3]}, reward="exact", gconfig={"max_new_tokens": 2})
        assert report["sets"]["test"]["rows"] == 3
    if make is areal.RewardModel:
        with pytest.raises(UsageError, match="scores answers"):
            result.generate("2*3=")


def test_ppo_has_a_critic(tmp_path):
    run = areal.PPO(**rl(tmp_path, "exact"))
    assert run.config.objective.preset == "ppo"
    assert run.config.critic == TrainEngineConfig()
    assert areal.PPO(**rl(tmp_path, "exact", critic={"lr": 0.5})).config.critic.lr == 0.5


def test_every_form_of_rows_is_the_same_file():
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    forms = [ROWS, tuple(ROWS), iter(ROWS), (row for row in ROWS), pandas.DataFrame(ROWS)]
    runs_of = [areal.SFT(**common("unused", train=rows)) for rows in forms]
    assert len({run.config.train_dataset.path for run in runs_of}) == 1
    table = areal.SFT(**common("unused", train=datasets.Dataset.from_list(ROWS)))
    again = areal.SFT(**common("unused", train=datasets.Dataset.from_list(ROWS).select(range(len(ROWS)))))
    other = areal.SFT(**common("unused", train=datasets.Dataset.from_list(ROWS[1:])))
    paths = [run.config.train_dataset.path for run in (table, again, other)]
    assert paths[0] == paths[1] != paths[2]
    assert paths[0].endswith(".parquet")
    assert not Path("unused").exists()


@pytest.mark.exhaustive
def test_a_dataset_trains_like_the_list_of_its_rows(tmp_path):
    datasets = pytest.importorskip("datasets")
    given_forms = {"table": datasets.Dataset.from_list(ROWS), "list": ROWS}
    losses = {
        name: areal.SFT(**common(tmp_path / name, train=rows, batch_size=8)).train().metrics.column("train/loss")
        for name, rows in given_forms.items()
    }
    assert losses["table"] == losses["list"]


def test_names_paths_and_sections_reach_every_key(tmp_path):
    by_name = areal.GRPO(**rl(tmp_path, "exact", train="arithmetic", train_dataset={"options": {"demonstrations": 3}}))
    assert by_name.config.train_dataset.name == "arithmetic"
    assert by_name.config.train_dataset.options == {"demonstrations": 3}
    by_path = areal.GRPO(**rl(tmp_path, exact_reward, train=tmp_path / "rows.jsonl", gconfig=GenerationConfig(top_k=3)))
    assert by_path.config.train_dataset.path == str(tmp_path / "rows.jsonl")
    assert by_path.config.reward == "areal.reward.exact:exact_reward"
    assert by_path.config.gconfig.top_k == 3
    assert "Not importable" not in by_path.config.to_yaml()
    assert by_path.config.trial_name == "grpo"
    shuffled = areal.GRPO(**rl(tmp_path, functools.partial(exact_reward), train_dataset={"shuffle": False}))
    assert shuffled.config.train_dataset.shuffle is False
    assert shuffled.config.train_dataset.name == "jsonl"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_sise": 3}, r"batch_sise \(GRPO\(\.\.\.\)\): unknown key; did you mean"),
        ({"actor": {"lr": "fast"}}, r"actor\.lr \(GRPO\(\.\.\.\)\): expected a number, got 'fast'"),
        ({"actor": {"lr": object()}}, r"actor\.lr is a object, expected what YAML can hold"),
        ({"gconfig": GenerationConfig}, r"gconfig .*expected"),
        ({"rollout": {"group_size": 0}}, r"group_size is 0, expected >= 1"),
        ({"train": 3}, r"train is a int, expected rows"),
        ({"train": []}, "train has no rows"),
        ({"train": [3]}, r"train: row 0 is 3, expected a dict"),
        ({"train": [ROWS[0], {"prompt": object()}]}, r"train: row 1: column 'prompt' holds a object"),
        ({"train_dataset": 3.5}, r"train is a float, expected rows"),
        ({"eval_sets": {"test": 7}}, r"eval_sets\.test is a int, expected rows"),
        ({"modell": MODEL}, r"modell \(GRPO\(\.\.\.\)\): unknown key; did you mean model\?"),
        ({"trian": ROWS}, r"trian \(GRPO\(\.\.\.\)\): unknown key; did you mean train\?"),
        ({"batch_size": 3}, r"batch_size .*; did you mean rollout\.batch_size\?"),
        ({"train": None}, r"train: required, rows, a file, or the name of a dataset"),
        ({"model": None}, r"model: required, a checkpoint folder"),
        ({"reward": ""}, r"reward: required, a function"),
        ({"sources": {"a": {"datset": ROWS}}}, r"sources\.a\.datset .*did you mean sources\.a\.dataset"),
        ({"sources": {"a": {"weight": 2}}}, r"sources\.a has no dataset"),
        ({"sources": {"a": {"dataset": 3}}}, r"sources\.a is a int, expected rows"),
        ({"sources": {"a": ROWS}}, r"there are sources, too"),
    ],
)
def test_what_is_wrong_is_said_at_once_with_the_name_of_the_field(changes, message, tmp_path):
    values = rl(tmp_path, "exact") | changes
    if "train_dataset" in changes:
        del values["train"]
    if "modell" in changes or values["model"] is None:
        values.pop("tokenizer_path")
    with pytest.raises((ConfigError, DataError), match=message):
        areal.GRPO(**values)
    assert not any(tmp_path.iterdir())


def mixture(folder):
    """A run of two sources whose rewards no other process can import, with numbers of their own."""

    def brief(prompt, completion, prompt_ids, completion_ids, **row):
        stats.record("length", len(completion_ids))
        return 1 / (1 + len(completion_ids))

    sources = {
        "easy": {"dataset": ROWS[:8], "weight": 3, "reward": lambda prompt, completion, *ids, **row: len(completion)},
        "hard": {"dataset": iter(ROWS[8:]), "reward": {"exact": 1.0, brief: 0.5}},
    }
    values = rl(folder, "", sources=sources, eval_sets={"held-out": {"dataset": ROWS[:2], "reward": "exact"}})
    del values["train"]
    return areal.GRPO(**values)


@pytest.mark.exhaustive
def test_every_source_has_rows_and_rewards_of_the_program(tmp_path):
    run = mixture(tmp_path / "run")
    assert [source.weight for source in run.config.sources.values()] == [3, 1]
    assert "sources.easy.reward: easy" in run.config.to_yaml()
    last = run.train().metrics[-1]
    assert last["source/easy/share"] == 0.75
    assert last["source/easy/reward_mean"] == pytest.approx(last["reward/easy/mean"])
    assert last["source/hard/reward_mean"] == pytest.approx(last["reward/exact/mean"] + last["reward/brief/mean"] / 2)
    assert 1 <= last["stats/length"] <= 4
    assert "eval/held-out/avg@1" in last
    alone = areal.GRPO(**{**rl(tmp_path, "exact"), "train": None, "sources": {"a": ROWS, "b": "arithmetic"}})
    assert alone.config.sources["a"].dataset.name == "jsonl"
    assert alone.config.sources["b"].dataset.name == "arithmetic"


@pytest.mark.exhaustive
def test_a_dry_run_says_what_areal_train_would_and_leaves_nothing(tmp_path, capsys):
    run = mixture(tmp_path / "run")
    found = run.dry_run()
    assert not any(tmp_path.iterdir())
    assert found["derived"]["total_steps"] == 2
    assert found["sources"]["easy"]["rows"] == 8
    assert found["tried"]["rewards"]["hard"]["components"].keys() == {"exact", "brief"}
    assert found["provenance"]["sources.easy.weight"] == "GRPO(...)"
    assert found["config"] == run.config.to_dict() | {"num_threads": found["config"]["num_threads"]}
    assert f"{found}" == repr(found) == found.text
    assert "Reward of source easy" in found.text
    assert json.loads(json.dumps(found)) == found

    # The command reports the same of the file that the run gives, but for origins, and the keys that all are in it.
    plain = rl(tmp_path / "plain", "exact", train_dataset={"name": "jsonl", "path": str(runs.ROWS)})
    del plain["train"]
    here = areal.GRPO(**plain)
    (tmp_path / "run.yaml").write_text(here.config.to_yaml())
    assert main(["train", str(tmp_path / "run.yaml"), "--dry-run", "--json"]) == 0
    there = json.loads(capsys.readouterr().out)
    report = json.loads(json.dumps(here.dry_run()))
    assert report.keys() <= there.keys()
    for key in ("kind", "run_dir", "config", "derived", "sources", "memory", "recovery"):
        assert report[key] == there[key], key

    wrong = areal.GRPO(**rl(tmp_path / "wrong", "exact", train=[{"promt": "2*3="}]))
    with pytest.raises(ConfigError, match=r"wrong/inputs/train-\w+\.jsonl: no column 'prompt': did you mean 'promt'"):
        wrong.dry_run()


@pytest.mark.exhaustive
def test_distillation_has_a_teacher_in_each_of_its_forms(trained, tmp_path):
    teacher = str(trained.checkpoint)

    def teachers(given_as):
        return areal.Distillation(**{**rl(tmp_path, ""), "teacher": given_as}).config.distillation.teachers

    assert teachers(teacher) == teachers(trained.checkpoint) == teachers({"path": teacher})
    assert {name: each.path for name, each in teachers(teacher).items()} == {"main": teacher}
    several = teachers({"a": "models/a", "b": {"server": "http://127.0.0.1:1", "tokenizer_path": teacher}})
    assert (several["a"].path, several["b"].server) == ("models/a", "http://127.0.0.1:1")
    loss = {"loss": {"divergence": "js", "estimator": "top_k", "k": 4}}
    # Another seed: a student with the weights that the teacher began with has nothing to learn.
    run = areal.Distillation(**{**rl(tmp_path / "run", "", seed=7), "teacher": teacher, "distillation": loss})
    assert run.config.distillation.loss.k == 4
    last = run.train().metrics[-1]
    assert last["distillation/main/tokens"] > 0
    assert last["train/divergence"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "teacher: required, a checkpoint folder"),
        ({"techer": "x"}, r"techer .*did you mean teacher\?"),
        ({"teacher": 3}, "teacher is a int, expected a checkpoint folder"),
        ({"teacher": {"a": 3}}, r"teacher\.a is a int"),
        ({"teacher": "http://127.0.0.1:1"}, "has no tokenizer_path"),
        ({"teacher": "x", "distillation": {"teachers": {"a": {"path": "x"}}}}, "teacher and distillation.teachers"),
        ({"teacher": "x", "distillation": {"los": {}}}, r"distillation\.los .*did you mean distillation\.loss"),
        ({"teacher": "x", "distillation": 3}, "distillation is 3, expected a section"),
    ],
)
def test_a_teacher_that_is_none_is_refused_by_name(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        areal.Distillation(**{**rl(tmp_path, ""), **changes})


def test_results_and_metrics_print_what_one_looks_for(trained):
    last = trained.metrics[-1]
    assert repr(trained) == f"<TrainResult: 2 steps; reward {last['reward/mean']:.4g}; {trained.checkpoint}>"
    lines = repr(trained.metrics).splitlines()
    assert lines[0].split()[:3] == ["step", "reward/mean", "train/loss"]
    assert lines[0].split()[-1] == "eval/held-out/avg@1"
    assert [line.split()[0] for line in lines[1:4]] == ["0", "1", "2"]
    assert f"{last['reward/mean']:.4g}" in lines[3]
    assert "column(name) has one of them" in lines[4]
    summary = {
        **trained.summary,
        "steps": 1,
        "checkpoint": None,
        "exports": {"best": {"step": 1, "folder": "runs/x/exports/step-1"}},
    }
    stopped = areal.TrainResult(config=trained.config, summary=summary)
    assert "1 of 2 steps; reward" in repr(stopped)
    assert f"not finished: train() continues {trained.directory}; best after step 1: runs/x/exports" in repr(stopped)
    many = areal.MetricTable({"step": step, "train/loss": 0.5} for step in range(30))
    assert len(repr(many).splitlines()) == 12
    assert "2 metrics of 30 rows, the last 10 shown" in repr(many)


def test_a_dataset_with_splits_is_refused_with_the_way_out(tmp_path):
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})
    with pytest.raises(ConfigError, match="DatasetDict with the splits train"):
        areal.SFT(**common(tmp_path, train=splits))


@pytest.mark.exhaustive
async def test_it_trains_and_generates_inside_a_running_event_loop(tmp_path):
    assert asyncio.get_running_loop().is_running()
    result = areal.GRPO(**rl(tmp_path / "run", lambda p, c, *ids, **row: len(c), total_train_steps=1)).train()
    assert result.finished
    assert len(result.generate(["2*3="])) == 1


def test_a_fingerprint_follows_the_code_of_a_function_and_what_it_refers_to():
    def made(text, name="score"):
        space = {"__name__": "__main__"}
        exec(textwrap.dedent(text), space)
        return fingerprint_object(space[name])

    plain = made("LIMIT = 3\ndef helper(c): return len(c) > LIMIT\ndef score(p, c): return helper(c)")
    assert plain == made(
        "LIMIT = 3\ndef helper(c):\n    # why\n    return len(c) > LIMIT\ndef score(p, c): return helper(c)"
    )
    assert plain == made(
        "OTHER = 9\nLIMIT = 3\ndef helper(c): return len(c) > LIMIT\ndef score(p, c): return helper(c)"
    )
    assert plain != made("LIMIT = 4\ndef helper(c): return len(c) > LIMIT\ndef score(p, c): return helper(c)")
    assert plain != made("LIMIT = 3\ndef helper(c): return len(c) >= LIMIT\ndef score(p, c): return helper(c)")
    counter = "class Counter:\n    step = {}\n    def __call__(self, p, c): return self.step\nscore = Counter()"
    assert made(counter.format(1)) == made(counter.format(1)) != made(counter.format(2))

    def scaled(factor):
        return lambda p, c: factor * len(c)

    assert fingerprint_object(scaled(2)) == fingerprint_object(scaled(2)) != fingerprint_object(scaled(3))


def test_importing_the_package_loads_nothing_and_unknown_names_are_refused():
    heavy = "{'torch', 'transformers', 'numpy', 'datasets'}"
    code = "import sys, areal; from areal import stats; stats.record('a', 1); areal.GRPO"
    code += f"; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    assert "GRPO" in dir(areal)
    with pytest.raises(AttributeError, match="it exports DPO, Distillation, DryRun, GRPO"):
        areal.GPRO  # noqa: B018 - the look-up is what is tested


SCRIPT = """
import areal

BONUS = 0.5

def helper(completion):
    return BONUS * len(completion)

def score(prompt, completion, prompt_ids, completion_ids, *, answer, **row):
    return helper(completion) + (completion == answer)

result = areal.GRPO(
    model={model!r},
    tokenizer_path={tokenizer!r},
    reward=[score, lambda prompt, completion, *ids, **row: float(completion[:1].isdigit())],
    train=({{"prompt": f"{{a}}*3=", "answer": str(3 * a)}} for a in range(1, 9)),
    gconfig={{"max_new_tokens": 4}},
    rollout={{"batch_size": 4, "group_size": 4}},
    engine={{"max_seq_len": 64}},
    total_train_steps=2,
    num_threads=1,
).train()
last = result.metrics[-1]
assert last["reward/score/mean"] > 0 and "reward/reward/mean" in last, last
print("FINISHED", result.finished, result.directory, result.generate("2*3=", greedy=True))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["file", "stdin", "exec"])
def test_a_script_rewards_with_its_own_functions(how, tmp_path):
    text = SCRIPT.format(model=MODEL, tokenizer=TOKENIZER)
    (tmp_path / "script.py").write_text(text)
    cell = "space = {'__name__': '__main__'}; exec(compile(open('script.py').read(), '<cell 1>', 'exec'), space)"
    arguments = {"file": ["script.py"], "stdin": ["-"], "exec": ["-c", cell]}[how]
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, input=text, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "FINISHED True runs/areal/grpo" in done.stdout
    assert "step 2/2" in done.stderr, "progress is shown"
    log = (tmp_path / "runs/areal/grpo/log.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["exit_code"] == 0


def test_errors_are_of_one_family(tmp_path):
    with pytest.raises(ArealError) as caught:
        areal.GRPO(**rl(tmp_path, ""), model_path="x")
    assert caught.value.fix
