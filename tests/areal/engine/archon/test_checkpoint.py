"""A checkpoint that four ranks write while they train is continued by two and by one, and exported, exactly."""

import json
from pathlib import Path

import pytest

WORKER = str(Path(__file__).with_name("checkpoint_worker.py"))


@pytest.mark.fault(
    row=29,
    injected="a checkpoint of four ranks continued by two and by one",
    seen="resharded: losses, parameters and random draws equal those of the four; logits of the export are equal; "
    "shards of another model are refused",
)
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_checkpoint_of_four_ranks_is_continued_by_two_and_one_and_exported(tmp_path, fork_server):
    def run(what, world_size):
        arguments = [f"--folder={tmp_path}", f"--what={what}"]
        return fork_server.run_ranks(WORKER, world_size, arguments, timeout_seconds=200)[0]

    saved = run("save", 4)
    refused = {}
    for world_size in (2, 1):
        results = run("resume", world_size)
        refused = results.pop("refusals", refused)
        for kind, found in results.items():
            assert found["loss"] == pytest.approx(saved[kind]["losses"][2], abs=1e-12), (kind, world_size)
            assert found["parameters"] < 1e-12, (kind, world_size)
            assert found["logits"] == 0, (kind, world_size)
            assert found["num_steps"] == 3
            # The generator goes on where it was when the state was saved.
            assert found["drawn"] == saved[kind]["drawn"]
    for kind, found in saved.items():
        manifest = json.loads((Path(found["published"]) / "manifest.json").read_text(encoding="utf-8"))
        assert (manifest["step"], manifest["meta"]["losses"]) == (2, found["losses"][:2]), kind
        assert sum(name.startswith("shards/__") for name in manifest["files"]) == 4
        assert [path.name for path in Path(found["published"]).parent.iterdir()] == [Path(found["published"]).name]
    assert refused["same"]
    reasons = ("no space for step 5", "no readable shards", "another model", "saved with another optimizer")
    for message, expected in zip(refused["errors"], reasons, strict=True):
        assert expected in message
