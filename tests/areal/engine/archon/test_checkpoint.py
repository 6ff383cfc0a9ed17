"""A checkpoint that some ranks write while they train is continued by fewer, split otherwise, and exported, exactly."""

import json
from pathlib import Path

import pytest

WORKER = str(Path(__file__).with_name("checkpoint_worker.py"))


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=29,
    injected="a checkpoint of four ranks, and one of two, continued by two and by one",
    seen="resharded: losses, parameters and random draws equal those of the run; logits of the export are equal; "
    "shards of another model are refused",
)
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_a_checkpoint_is_continued_by_fewer_ranks_and_exported(tmp_path, fork_server, num_ranks):
    found = {}
    # The processes that saved it continue it too where there are as many.
    jobs = [(2, ("save", "resume")), (1, ("resume",))]
    if num_ranks == 4:
        jobs = [(4, ("save",)), (2, ("resume",)), (1, ("resume",))]
    for world_size, what in jobs:
        arguments = [f"--folder={tmp_path}", "--what", *what]
        found[world_size] = fork_server.run_ranks(WORKER, world_size, arguments, timeout_seconds=200)[0]
    saved, refused = found[num_ranks]["save"], found[2]["refusals"]
    for world_size in (2, 1):
        for kind, resumed in found[world_size]["resume"].items():
            assert resumed["loss"] == pytest.approx(saved[kind]["losses"][2], abs=1e-12), (kind, world_size)
            assert resumed["parameters"] < 1e-12, (kind, world_size)
            assert resumed["logits"] == 0, (kind, world_size)
            assert resumed["num_steps"] == 3
            # The generator goes on where it was when the state was saved.
            assert resumed["drawn"] == saved[kind]["drawn"]
    for kind, run in saved.items():
        manifest = json.loads((Path(run["published"]) / "manifest.json").read_text(encoding="utf-8"))
        assert (manifest["step"], manifest["meta"]["losses"]) == (2, run["losses"][:2]), kind
        assert sum(name.startswith("shards/__") for name in manifest["files"]) == num_ranks
        assert [path.name for path in Path(run["published"]).parent.iterdir()] == [Path(run["published"]).name]
    assert refused["same"]
    reasons = ("no space for step 5", "no readable shards", "another model", "saved with another optimizer")
    for message, expected in zip(refused["errors"], reasons, strict=True):
        assert expected in message
