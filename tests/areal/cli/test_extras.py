"""Commands in an environment that lacks the packages of an extra."""

from __future__ import annotations

import json
import subprocess
import sys

from areal.api import UsageError
from areal.cli.extras import missing_package


def test_without_the_packages_that_train_the_error_is_one_line_and_the_extra():
    code = (
        "import sys; sys.modules['torch'] = None; from areal.cli.main import main; sys.exit(main(['demo', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "error: this command needs torch, which is not installed\nfix: pip install 'areal[train]'\n",
    )
    assert json.loads(done.stdout)["code"] == "usage"


def test_what_no_extra_brings_and_other_errors_stay_what_they_are():
    for error in (ModuleNotFoundError("no", name="pandas"), ModuleNotFoundError("no", name="torch.new"), OSError("no")):
        assert missing_package(error) is error
    assert isinstance(missing_package(ModuleNotFoundError("no", name="peft")), UsageError)
