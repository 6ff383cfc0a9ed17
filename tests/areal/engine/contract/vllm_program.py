"""Takes the command line of a vLLM server and serves the double instead; see `write_python`.

python vllm_program.py -m vllm.entrypoints.openai.api_server --model FOLDER --port PORT ...
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


def write_python(path, pause=0.0):
    """An executable that passes for the Python of an environment with vLLM.

    Its servers wait `pause` seconds after each piece of an answer: a tiny model is done before anything else happens.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The servers' own import path leads to the copies for vLLM's workers; the double needs the whole package.
    variables = f'PYTHONPATH="{ROOT}" OMP_NUM_THREADS=1 AREAL_TEST_PAUSE={pause}'
    path.write_text(f'#!/bin/sh\n{variables} exec "{sys.executable}" "{Path(__file__).resolve()}" "$@"\n')
    path.chmod(0o755)
    return path


def main(arguments):
    assert arguments[:2] == ["-m", "vllm.entrypoints.openai.api_server"], arguments
    options = dict(itertools.pairwise(arguments))
    if "--enable-return-routed-experts" in arguments:
        assert os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1", "the other one records no experts"
        os.environ["AREAL_TEST_ROUTES"] = "1"
    double = Path(__file__).with_name("double.py")
    host = options.get("--host", "127.0.0.1")
    os.execv(sys.executable, [sys.executable, str(double), "vllm", options["--model"], options["--port"], "", host])


if __name__ == "__main__":
    main(sys.argv[1:])
