"""Exports while a run goes on, what stays of them, an early end, and that all of it survives a kill."""

from __future__ import annotations

import json
import math

import pair_runs
import pytest
import runs

from areal.api import ConfigError, FinishedError
from areal.models import from_pretrained
from areal.trainer.evaluation_config import EarlyStopConfig, ExportConfig
from areal.trainer.milestones import EarlyStop, RunExports, export_folder


def write(folder):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")


def folders(run):
    return sorted(int(path.name.removeprefix("step-")) for path in (run / "exports").glob("step-*"))


def exported(run, config, values, *, first_step=0, export=write):
    """Steps that are there after a metric had these values, from the step after `first_step` on."""
    exports = RunExports(run, config, first_step=first_step)
    for step, value in enumerate(values, start=first_step + 1):
        exports.after_step(step, {} if value is None else {"m": value}, export)
    return exports


@pytest.mark.parametrize(
    ("config", "values", "kept", "best"),
    [
        (ExportConfig(every_steps=2, keep=2), [None] * 7, [4, 6], None),
        (ExportConfig(best_metric="m"), [0.1, 0.5, 0.4, None, 0.5, 0.2], [2], 2),
        (ExportConfig(best_metric="m", mode="min"), [3.0, math.nan, 2.0, 2.5], [3], 3),
        (ExportConfig(every_steps=1, keep=1, best_metric="m"), [0.1, 0.9, 0.3, 0.4], [2, 4], 2),
        (ExportConfig(), [0.1, 0.9], [], None),
    ],
)
def test_the_newest_and_the_best_stay(tmp_path, config, values, kept, best):
    exports = exported(tmp_path, config, values)
    assert folders(tmp_path) == kept
    assert exports.best == best
    if kept:
        index = json.loads((tmp_path / "exports" / "exports.json").read_text())
        assert [entry["step"] for entry in index["exports"]] == kept
        assert index["best"] == best


def test_a_continued_run_knows_its_best_model_and_forgets_what_it_will_do_again(tmp_path):
    config = ExportConfig(every_steps=2, keep=2, best_metric="m")
    exported(tmp_path, config, [0.1, 0.2, 0.9, 0.3, None, None, None, None])
    assert folders(tmp_path) == [3, 6, 8]
    again = exported(tmp_path, config, [0.8, None], first_step=4)
    assert folders(tmp_path) == [3, 6], "0.8 is not better than 0.9 of step 3"
    assert again.best == 3


def test_a_folder_that_was_to_be_removed_when_the_process_was_killed_goes_at_the_next_start(tmp_path, monkeypatch):
    config = ExportConfig(every_steps=1, keep=1)
    exports = exported(tmp_path, config, [None])
    monkeypatch.setattr(RunExports, "_remove", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        exports.after_step(2, {}, write)
    monkeypatch.undo()
    assert folders(tmp_path) == [1, 2]
    write(export_folder(tmp_path, 7))
    exported(tmp_path, config, [], first_step=2)
    assert folders(tmp_path) == [2, 7], "what `areal export` wrote is not the run's to remove"


def test_a_disk_that_refuses_ends_no_training(tmp_path, caplog):
    def full(folder):
        raise OSError(28, "No space left on device")

    exports = exported(tmp_path, ExportConfig(every_steps=1), [None], export=full)
    assert exports.summary() is None
    assert "was not exported; training goes on" in caplog.text


@pytest.mark.parametrize(
    ("settings", "values", "stops_after"),
    [
        ({"patience": 2}, [0.1, 0.2, 0.2, 0.2, 0.9], 4),
        ({"patience": 2}, [0.1, None, 0.0, None, 0.2, 0.1, 0.1], 7),
        ({"patience": 1, "min_delta": 0.05}, [0.1, 0.14], 2),
        ({"patience": 2, "mode": "min"}, [3.0, 2.0, math.nan, 2.0], 4),
        ({"patience": 3}, [0.1, 0.1, 0.1], None),
    ],
)
def test_patience_counts_values_without_an_improvement_also_over_a_restart(settings, values, stops_after):
    config = EarlyStopConfig(metric="m", **settings)
    state = None
    found = None
    for step, value in enumerate(values, start=1):
        watched = EarlyStop(config, json.loads(json.dumps(state)))
        watched.after_step(step, {} if value is None else {"m": value})
        state = watched.state_dict()
        found = found or (step if watched.stopped else None)
    assert found == stops_after
    assert not EarlyStop(EarlyStopConfig(metric="other"), state).stopped, "what is watched has changed"


def test_nothing_watched_is_refused():
    with pytest.raises(ConfigError, match=r"early_stop\.metric is empty"):
        EarlyStopConfig()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return pair_runs.write_pairs(tmp_path_factory.mktemp("pairs"), train=16, test=8)


def test_a_run_ends_early_where_a_continued_one_does_and_exports_its_best_model(tmp_path, pairs):
    changes = {
        "eval_every_steps": 1, "eval_rows": 8, "actor__lr": 0.0, "total_train_steps": 9, "checkpoint__every_steps": 1,
        "early_stop": {"metric": "eval/loss", "mode": "min", "patience": 3},
        "export": {"best_metric": "eval/loss", "mode": "min"},
    }  # fmt: skip
    straight, _ = pair_runs.train(pair_runs.tiny("dpo", tmp_path / "straight", pairs, **changes))
    config = pair_runs.tiny("dpo", tmp_path / "broken", pairs, **changes)
    with pytest.raises(KeyboardInterrupt):
        pair_runs.train(config, fail_at=2)
    continued, _ = pair_runs.train(config)
    for summary in (straight, continued):
        assert (summary["finished"], summary["stopped_early"], summary["steps"]) == (True, True, 3)
        assert summary["exports"]["best"]["step"] == 1, "the first of equals"
    model = from_pretrained(tmp_path / "broken" / "exports" / "step-00000001")
    final = from_pretrained(continued["checkpoint"])
    assert all(value.equal(final.state_dict()[name]) for name, value in model.state_dict().items()), "lr is 0"
    with pytest.raises(FinishedError, match=r"early_stop has ended the run in .* after step 3"):
        pair_runs.train(config)


def test_an_rl_run_exports_by_the_score_of_one_of_its_sets(tmp_path):
    held = {"dataset": {"name": "jsonl", "path": str(runs.ROWS)}, "rows": 4}
    config = runs.tiny(
        tmp_path / "run",
        eval_sets={"held": held},
        eval_every_steps=2,
        total_train_steps=3,
        export={"best_metric": "eval/held/length", "mode": "max", "every_steps": 1, "keep": 1},
        rollout__batch_size=2,
        rollout__group_size=2,
    )
    summary, _ = runs.train(config)
    index = json.loads((tmp_path / "run" / "exports" / "exports.json").read_text())
    measured = {entry["step"]: entry["value"] for entry in index["exports"]}
    assert measured[3] == summary["eval_after"]["eval/held/length"], "the last evaluation counts too"
    assert summary["exports"]["best"]["step"] in measured
