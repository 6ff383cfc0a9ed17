"""A trainer whose learner is busy, until somebody kills it; prints the process group of the learner."""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import runs

from areal.trainer.learner_process import LearnerProcess
from areal.trainer.learner_start import LearnerStart


def main():
    config = runs.tiny(Path(tempfile.gettempdir()) / "unused")
    started = LearnerStart()
    sys.stdout.write(f"{started.pid}\n")
    sys.stdout.flush()
    LearnerProcess(config, started).call(_sleep)


def _sleep(models):
    del models
    time.sleep(600)


if __name__ == "__main__":
    main()
