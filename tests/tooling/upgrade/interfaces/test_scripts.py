"""Scripts of a repository whose flags are the fields of a release's classes.

python -m pytest tests/tooling/upgrade/interfaces/test_scripts.py -q
"""

import re

import pytest

from tooling.upgrade.findings import AuditSeverity
from tooling.upgrade.interfaces.judge import judge_interfaces
from tooling.upgrade.sources.folder import memory_release

MARK = re.compile(r"# (breaks|warns)")
WORDS = {AuditSeverity.BREAKING: "breaks", AuditSeverity.WARNING: "warns"}
OLD = {
    "lib/__init__.py": "if 1:\n    from .arguments import TrainingArguments\n",
    "lib/arguments.py": (
        "class Base:\n    output_dir: str\n"
        "class TrainingArguments(Base):\n    evaluation_strategy: str = 'no'\n    bf16: bool = False\n"
    ),
}
NEW = {**OLD, "lib/arguments.py": OLD["lib/arguments.py"].replace("    evaluation_strategy: str = 'no'\n", "")}
TRAIN = """
from lib import TrainingArguments
from hub import HfArgumentParser
class Mine(TrainingArguments):
    lora_rank: int = 8
parser = HfArgumentParser((Mine,))
arguments = parser.parse_args_into_dataclasses()
"""
RUN = """
torchrun --nproc_per_node 8 tools/train.py --output_dir x \\
    --evaluation_strategy steps --bf16
accelerate launch tools/train.py --evaluation-strategy steps  # breaks
python -m tools.train --evaluation_strategy steps  # breaks
python other/train.py --lora_rank 4
python tools/eval.py --evaluation_strategy steps
"""


def findings(tmp_path, train, run, new=NEW):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/train.py").write_text(train)
    (tmp_path / "run.sh").write_text(run)
    old_side, new_side = memory_release(OLD, "lib", "1"), memory_release(new, "lib", "2")
    judged = judge_interfaces(tmp_path, old_side, new_side, "lib")
    return {each.line: WORDS[each.severity] for each in judged.findings}


def marked(text):
    return {number: hit[1] for number, line in enumerate(text.splitlines(), 1) if (hit := MARK.search(line))}


def test_a_flag_whose_field_is_gone_is_refused(tmp_path):
    assert findings(tmp_path, TRAIN, RUN) == {**marked(RUN), 3: "breaks"}


def test_a_field_that_the_script_s_own_class_has_is_its_own(tmp_path):
    train = TRAIN.replace("lora_rank: int = 8", "evaluation_strategy: str = 'no'")
    assert findings(tmp_path, train, RUN) == {}


@pytest.mark.parametrize(
    "train",
    [
        TRAIN.replace("parse_args_into_dataclasses()", "parse_args_into_dataclasses(return_remaining_strings=True)"),
        TRAIN.replace("class Mine(TrainingArguments)", "class Mine(TrainingArguments, elsewhere.More)"),
    ],
    ids=["rest is kept", "a base from elsewhere"],
)
def test_what_is_not_sure_is_a_warning(tmp_path, train):
    assert set(findings(tmp_path, train, RUN).values()) == {"warns"}


def test_a_field_that_moved_to_a_base_is_no_loss(tmp_path):
    base = "class Base:\n    output_dir: str\n    evaluation_strategy: str = 'no'\n"
    moved = f"{base}class TrainingArguments(Base):\n    bf16: bool\n"
    assert findings(tmp_path, TRAIN, RUN, {**OLD, "lib/arguments.py": moved}) == {}
