"""A run from a notebook, in a real kernel: what the cell shows, Ctrl-C, and going on."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import runs

if TYPE_CHECKING:
    from pathlib import Path

MISSING = [name for name in ("ipykernel", "nbclient", "nbformat") if importlib.util.find_spec(name) is None]
SETTINGS = {
    "gconfig": {"max_new_tokens": 4},
    "rollout": {"batch_size": 2, "group_size": 4, "max_head_offpolicyness": 0},
    "engine": {"max_seq_len": 64},
    "objective": {"preset": "dapo"},
    "actor": {"device": "cpu", "lr": 1e-3},
    "checkpoint": {"every_steps": 1000},
}
SETUP = f"""
import areal
rows = [{{"prompt": f"{{a}}*{{b}}=", "answer": str(a * b)}} for a in range(8) for b in range(8)]
def run(steps):
    return areal.GRPO(
        model={{"init": {runs.BASE["model.init"]!r}, "tokenizer_path": {runs.BASE["model.tokenizer_path"]!r}}},
        reward=lambda prompt, completions, prompt_ids, completion_ids, **row: float(len(completions)),
        train=rows, output_dir=FOLDER, total_train_steps=steps, **{SETTINGS!r},
    )
"""


def played(
    folder: Path, cells: list[str], *, interrupt_in: int | None = None
) -> tuple[list[str], Counter[str], list[str]]:
    """Run cells in a fresh kernel; interrupt one once it shows a step. Returns of each cell all texts of its outputs,
    the messages by type and cell, and of each update of the display its text.
    """
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    messages: Counter[str] = Counter()
    drawn: list[str] = []

    class Client(NotebookClient):
        interrupted = False

        def process_message(self, msg, cell, cell_index):
            messages[f"{msg['msg_type']} {cell_index}"] += 1
            if msg["msg_type"] in ("display_data", "update_display_data"):
                text = msg["content"]["data"]["text/plain"]
                drawn.append(text)
                if cell_index == interrupt_in and " elapsed, " in text and not self.interrupted:
                    self.interrupted = True
                    self._stopping = asyncio.ensure_future(self.km.interrupt_kernel())
            return super().process_message(msg, cell, cell_index)

    sources = [f"FOLDER = {str(folder)!r}\n{SETUP}", *cells]
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    Client(notebook, timeout=200, kernel_name="python3").execute()
    texts = [
        "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)
        for cell in notebook.cells
    ]
    return texts, messages, drawn


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(MISSING), reason=f"needs a kernel: pip install {' '.join(MISSING)}")
def test_a_run_in_a_notebook_shows_one_panel_is_interrupted_and_goes_on(tmp_path):
    cells = [
        "run(100000).dry_run()['derived']['total_steps']",
        "result = run(100000).train()\nresult",
        "import json, pathlib\n"
        "steps = len(pathlib.Path(FOLDER, 'metrics.jsonl').read_text().splitlines()) - 1\n"
        "saved = [path.name for path in pathlib.Path(FOLDER, 'checkpoints').iterdir()]\n"
        "print(json.dumps([steps, saved]))",
        "result = run(steps + 2).train()\nprint(result)",
    ]
    texts, messages, drawn = played(tmp_path / "run", cells, interrupt_in=2)
    assert texts[1].splitlines()[-1] == "100000", "a dry run starts no loop in that of the kernel"
    # The interrupted cell ends without an error, and the kernel goes on with the next.
    assert "not finished: train() continues" in texts[2]
    steps, saved = json.loads(texts[3])
    assert steps >= 1
    assert saved == [f"step-{steps:08d}.000001"]
    assert f"<TrainResult: {steps + 2} steps" in texts[4]
    for cell in (2, 4):
        assert messages[f"display_data {cell}"] == 1, "one panel, whatever happens in the run"
        assert messages[f"update_display_data {cell}"] >= 1
        assert messages[f"stream {cell}"] <= 12, "log lines of the start, and none for each step"
    assert "stopped (" in texts[2], "the final state stays in the saved notebook"
    assert f"step {steps + 2}/{steps + 2}" in texts[4]
    assert "done (" in texts[4]
    assert 'install "ipywidgets"' not in texts[2]
    assert any("loading" in text for text in drawn)
