"""Distillation runs: a student becomes its teacher, alone or beside a reward, with one teacher or one for each row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import runs
import torch

from areal.algorithm.packing import collate
from areal.api import NO_VERSION, ConfigError, DataError, DistilledBatch, Provenance, StopReason, Trajectory
from areal.dataset.encoding import load_tokenizer
from areal.dataset.tokenizer_identity import check_same_tokenizer, tokenizer_fingerprint
from areal.engine.train.runner import FrozenModel
from areal.infra.metrics.logger import read_metrics
from areal.models import from_config, from_pretrained, save_pretrained
from areal.trainer.assembly import load_rows, tokenizer_of
from areal.trainer.configuration.source import load_config
from areal.trainer.configuration.validation import find_problems
from areal.trainer.learner import PolicyLearner
from areal.trainer.policy_models import build_models
from areal.trainer.rank_group import RankGroup
from areal.trainer.session import open_session
from areal.trainer.sft import SFTTrainer
from areal.trainer.teachers import TeacherChoice
from tests.support.teacher_double import TeacherServer

EXAMPLES = Path(__file__).parents[3] / "examples/math"
INIT = runs.BASE["model.init"] | {"initializer_range": 0.3}


@pytest.fixture(scope="module")
def teachers(tmp_path_factory) -> tuple[str, str]:
    """Folders of two tiny models with sharp random distributions."""
    tokenizer = load_tokenizer(runs.BASE["model.tokenizer_path"])
    folders = []
    for seed in (11, 12):
        folder = tmp_path_factory.mktemp(f"teacher{seed}")
        save_pretrained(from_config(INIT, seed=seed), folder)
        tokenizer.save_pretrained(folder)
        folders.append(str(folder))
    return folders[0], folders[1]


def _distilling(output_dir: Path, teacher: str, **changes):
    settings = {
        "reward": "",
        "rollout__group_size": 1,
        "rollout__batch_size": 8,
        "objective__entropy_coef": 0.0,
        "distillation__teachers": {"main": {"path": teacher}},
        "actor__lr": 1e-2,
    }
    return runs.tiny(output_dir, **(settings | changes))


def learner_of(config):
    return PolicyLearner(RankGroup().create(build_models, config, tokenizer_of(config.model), 4))


def _trajectories(count: int = 6) -> list[Trajectory]:
    """Answers of unequal length; the group is the ordinal of the row."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for index in range(count):
        answer = 1 + index % 4
        tokens = torch.randint(2, 17, (4 + answer,), generator=generator).tolist()
        masked, sampled = [0] * 4, [1] * answer
        found.append(
            Trajectory(
                tokens=tokens,
                loss_mask=masked + sampled,
                logprobs=[0.0] * 4 + [-2.8] * answer,
                versions=[NO_VERSION] * 4 + [0] * answer,
                turn_ids=[NO_VERSION] * 4 + [0] * answer,
                reward=0.0,
                stop_reason=StopReason.STOP,
                group_id=index,
            )
        )
    return found


@pytest.mark.parametrize("estimator", runs.sample_of(["sampled", "top_k"], "top_k"))
@pytest.mark.parametrize("divergence", runs.sample_of(["forward_kl", "js", "reverse_kl"], "js"))
def test_a_run_without_reward_moves_the_student_towards_its_teacher(tmp_path, teachers, divergence, estimator):
    config = _distilling(
        tmp_path,
        teachers[0],
        total_train_steps=16 if estimator == "top_k" else 40,
        rollout__batch_size=16,
        distillation__loss={"divergence": divergence, "estimator": estimator, "k": 17},
    )
    summary, _ = runs.train(config)
    assert summary["ok"]
    rows = read_metrics(tmp_path / "metrics.jsonl").values()
    kl = [row["distillation/main/reverse_kl"] for row in rows if "train/loss" in row]
    assert sum(kl[-3:]) < 0.6 * sum(kl[:3])


@pytest.mark.sample(1)
@pytest.mark.parametrize("estimator", ["sampled", "top_k"])
def test_every_row_is_scored_by_its_own_teacher_and_updates_do_not_depend_on_micro_batches(
    tmp_path, teachers, estimator
):
    folders = {"first": {"path": teachers[0]}, "second": {"path": teachers[1]}}
    numbers = [0, 1, 1, 0, 1, 0]
    results = []
    for tokens in (16384, 9):
        config = _distilling(
            tmp_path,
            "",
            distillation__teachers=folders,
            distillation__loss={"estimator": estimator, "k": 5},
            actor__max_tokens_per_micro_batch=tokens,
            actor__dtype="float64",
            gconfig__temperature=0.7,
        )
        learner = learner_of(config)
        batch = learner.prepare(_trajectories(), numbers)
        assert isinstance(batch, DistilledBatch)
        metrics = learner.update(batch)
        results.append((metrics, {name: value.clone() for name, value in learner.actor.weights().items()}))
    plain = collate(_trajectories())
    for number, folder in enumerate(teachers):
        rows = [row for row, chosen in enumerate(numbers) if chosen == number]
        model = FrozenModel(from_pretrained(folder, dtype=torch.float64))
        expected = model.forward_logp(plain, temperature=0.7, only_masked=True)[rows]
        torch.testing.assert_close(batch.teacher_logp[rows], expected, rtol=0, atol=1e-12)
    (one, first), (many, second) = results
    assert many["train/micro_batches"] > one["train/micro_batches"] == 1
    assert one["train/divergence"] > 0
    for name in ("train/loss", "train/divergence", "train/distillation_loss", "train/grad_norm"):
        assert many[name] == pytest.approx(one[name], rel=1e-9), name
    assert one["distillation/first/tokens"] + one["distillation/second/tokens"] == float(plain.loss_mask.sum())
    assert max(float((first[name] - second[name]).abs().max()) for name in first) < 1e-9


def test_beside_a_reward_both_losses_add_up(tmp_path, teachers):
    found = {}
    for weight in (0.5, 2.0):
        config = _distilling(
            tmp_path,
            teachers[0],
            reward="exact",
            rollout__group_size=2,
            distillation__loss={"weight": weight, "estimator": "top_k", "k": 4},
        )
        learner = learner_of(config)
        rewarded = [
            replace(item, reward=float(index % 2), group_id=index // 2) for index, item in enumerate(_trajectories())
        ]
        found[weight] = learner.update(learner.prepare(rewarded, [0] * 6))
    for weight, metrics in found.items():
        assert metrics["train/loss"] == pytest.approx(
            metrics["train/policy_loss"] + metrics["train/distillation_loss"], rel=1e-5
        )
        assert metrics["train/distillation_loss"] == pytest.approx(weight * metrics["train/divergence"], rel=1e-5)
        assert 0 < metrics["train/teacher_tail_mass"] < 1
    assert found[0.5]["train/policy_loss"] == found[2.0]["train/policy_loss"]
    assert found[0.5]["train/grad_norm"] != found[2.0]["train/grad_norm"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("estimator", ["sampled", "top_k"])
def test_a_teacher_on_a_server_teaches_what_it_teaches_here(tmp_path, teachers, estimator):
    numbers, metrics = [0, 1, 1, 0, 1, 0], []
    with TeacherServer(from_pretrained(teachers[1])) as server:
        there = {"server": server.url, "tokenizer_path": teachers[1]}
        for second in ({"path": teachers[1]}, there):
            config = _distilling(
                tmp_path,
                "",
                distillation__teachers={"first": {"path": teachers[0]}, "second": second},
                distillation__loss={"estimator": estimator, "k": 4},
            )
            tokenizer = tokenizer_of(config.model)
            learner = learner_of(config)
            rows = load_rows(config.train_dataset, tokenizer, kind="rl", seed=config.seed)
            whole = _Numbered(config.distillation, {"": rows}, numbers)
            trajectories = _trajectories()
            chosen = whole.of(trajectories)
            metrics.append(learner.update(learner.prepare(trajectories, chosen, whole.served(trajectories, chosen))))
    assert server.bodies
    here, remote = metrics
    for name in ("train/distillation_loss", "train/divergence", "train/teacher_logp", "train/grad_norm"):
        assert remote[name] == pytest.approx(here[name], rel=1e-4), name


def test_the_teacher_of_a_row_is_named_by_its_column(tmp_path, teachers):
    lines = [{"prompt": f"{n}*2=", "answer": str(2 * n), "source": "first" if n % 2 else "second"} for n in range(2, 6)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = _distilling(
        tmp_path / "run",
        "",
        train_dataset__path=str(path),
        distillation__teachers={"first": {"path": teachers[0]}, "second": {"path": teachers[1]}},
    )
    rows = load_rows(config.train_dataset, tokenizer_of(config.model), kind="rl", seed=config.seed)
    choice = TeacherChoice(config.distillation, {"": rows})
    found = choice.of([replace(item, provenance=Provenance(row=row)) for row, item in enumerate(_trajectories(4))])
    assert found == [0 if rows.at(row)["source"] == "first" else 1 for row in range(4)]
    assert set(found) == {0, 1}

    # A source with the name of a teacher is taught by that one, whatever its rows say.
    choice = TeacherChoice(config.distillation, {"second": rows, "mixed": rows})
    visits = [replace(item, provenance=Provenance(row=0)) for item in _trajectories(2)]
    assert choice.of([replace(item, source=name) for item, name in zip(visits, ("second", "mixed"), strict=True)]) == [
        1, found[0],
    ]  # fmt: skip

    path.write_text(json.dumps(lines[0] | {"source": "frist"}) + "\n")
    rows = load_rows(config.train_dataset, tokenizer_of(config.model), kind="rl", seed=config.seed)
    with pytest.raises(DataError, match=r"'frist', expected the name of a teacher.*did you mean 'first'"):
        TeacherChoice(config.distillation, {"": rows})


def test_teachers_with_other_tokenizers_are_refused(tmp_path):
    other = load_tokenizer("characters:0123456789+-*/%")
    other.save_pretrained(tmp_path / "other")
    served = {"server": "http://127.0.0.1:9", "tokenizer_path": str(tmp_path / "other")}
    config = _distilling(tmp_path / "run", "", distillation__teachers={"main": served})
    with pytest.raises(ConfigError, match="id 16 is '%' to it and '=' to the trained model") as caught:
        learner_of(config)
    assert caught.value.where == "distillation.teachers.main.tokenizer_path"


def test_tokenizers_are_compared_by_what_ids_mean():
    one, same = (load_tokenizer(runs.BASE["model.tokenizer_path"]) for _ in range(2))
    assert tokenizer_fingerprint(one) == tokenizer_fingerprint(same)
    same.eos_token = "="
    with pytest.raises(ConfigError, match="ends sequences with id 16, the trained model with 1"):
        check_same_tokenizer(one, same, where="here")
    with pytest.raises(ConfigError, match="258 tokens against 17"):
        check_same_tokenizer(one, load_tokenizer("bytes:"), where="here")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distillation__teachers": {}}, "teachers is empty"),
        ({"distillation__teachers": {"a": {}}}, "expected exactly one"),
        ({"distillation__teachers": {"a/b": {"path": "x"}}}, "rename the teacher|a/b"),
        ({"distillation__teachers": {"a": {"server": "http://127.0.0.1:1"}}}, "tokenizer_path"),
        ({"distillation__teachers": {"a": {"server": "localhost:1", "tokenizer_path": "x"}}}, "expected an address"),
        ({"gconfig__top_p": 0.9}, "estimator sampled is an average over samples"),
        ({"gconfig__greedy": True}, "samples greedy"),
        (
            {
                "distillation__teachers": {"a": {"server": "http://127.0.0.1:1", "tokenizer_path": "x"}},
                "gconfig__temperature": 0.7,
            },
            "scores at temperature 1",
        ),
    ],
)  # fmt: skip
def test_settings_that_cannot_teach_are_refused(tmp_path, teachers, changes, message):
    with pytest.raises(ConfigError, match=message):
        _distilling(tmp_path, teachers[0], **changes)


def test_problems_are_found_before_anything_is_loaded(tmp_path, teachers):
    fine = _distilling(tmp_path, teachers[0])
    assert find_problems(fine) == []
    wrong = _distilling(tmp_path, "no/such/folder", rollout__filter_zero_variance=True, rollout__group_size=2)
    assert {problem.key for problem in find_problems(wrong)} == {
        "distillation.teachers.main.path",
        "rollout.filter_zero_variance",
    }


class _Numbered(TeacherChoice):
    """Takes the numbers of teachers as given, since these trajectories belong to no rows."""

    def __init__(self, config, sources, numbers):
        self._given = numbers
        super().__init__(config, sources)

    def of(self, trajectories):
        return [self._given[item.group_id % len(self._given)] for item in trajectories]

    def _number(self, source, row):
        return 0


@pytest.fixture(scope="module")
def trained_teacher(tmp_path_factory) -> str:
    """Folder of the teacher of the examples."""
    folder = tmp_path_factory.mktemp("trained")
    changes = ["metrics.progress=false", f"output_dir={folder}"]
    config = load_config(EXAMPLES / "distillation_teacher.yaml", changes).config
    with open_session(config) as session:
        SFTTrainer(config, session).train()
    return str(folder / "final")


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("loss", "minimum"),
    [({}, 0.85), ({"divergence": "forward_kl", "k": 4}, 0.85), ({"estimator": "sampled"}, 0.15)],
)
def test_a_student_of_the_example_answers_like_its_teacher(tmp_path, trained_teacher, loss, minimum):
    changes = {"output_dir": tmp_path, "distillation.teachers.main.path": trained_teacher, "metrics.progress": "false"}
    changes |= {f"distillation.loss.{key}": value for key, value in loss.items()}
    config = load_config(EXAMPLES / "distillation.yaml", [f"{key}={value}" for key, value in changes.items()]).config
    summary, _ = runs.train(config)
    assert summary["eval_before"]["eval/validation/avg@1"] < 0.05
    assert summary["eval_after"]["eval/validation/avg@1"] > minimum
