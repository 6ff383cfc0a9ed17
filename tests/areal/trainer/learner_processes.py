"""A trainer whose learner is busy, until somebody kills it; prints the process group of the learner."""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import runs

from areal.trainer.learner_process import LearnerProcess


def main():
    config = runs.tiny(Path(tempfile.gettempdir()) / "unused")
    process = LearnerProcess(config)
    sys.stdout.write(f"{process.pid}\n")
    sys.stdout.flush()
    process.ask(_sleep)


def _sleep(models):
    del models
    time.sleep(600)


if __name__ == "__main__":
    main()
