"""What a scripted agent is given to do each skill once: values for words of the text, and contents. No commands.

Workspaces and verdicts are those of tests/skills; the words on the left have to stand in the skill's text.
"""

from __future__ import annotations

from first_tasks import CHINESE, REVIEW, SPANS_TEST
from skill_player import SkillTask, Writing

AGREE = "areal/utils/agree.py"
LEFT_EARLY = "a rank of ours left early"
MARK = "\n<!-- areal-docs follows"
SCRATCH = ".git/evaluation/shop"
"""Of the workspace: git does not see it."""
QUICK_CHECKS = (
    {
        "edit": {
            "path": "pyproject.toml",
            "before": 'checks = ["bash", "scripts/check.sh"]',
            "after": 'checks = ["bash", "scripts/check.sh", "--fast"]',
        }
    },
    {"run": ["git", "commit", "-q", "-m", "ci: the quick gates before a request", "--", "pyproject.toml"]},
)
"""What `areal-pr create --run-checks` runs there: the whole suite is what this test is part of."""

PLAYS = {
    "add-dataset": SkillTask("add-dataset/1", {"sums": None}),
    "add-environment": SkillTask("add-environment/1", {"corner-shop": "till"}),
    "add-model": SkillTask(
        "add-model/1",
        {"granite": "llama", "my-llm": None, "families.json": None},
    ),
    "add-reward": SkillTask("add-reward/1"),
    "add-unit-tests": SkillTask(
        "add-unit-tests/1",
        {"tests/areal/algorithm": "tests/areal/utils", "gae": "backoff"},
        (
            Writing("Put the file where the code is mirrored", "tests/areal/utils/test_backoff.py", SPANS_TEST),
            Writing(
                "break the code on purpose",
                "areal/utils/backoff.py",
                before="min(first * 2**number, most)",
                after="first * 2**number",
                undone=True,
            ),
        ),
    ),
    "add-workflow": SkillTask("add-workflow/1", {"with-tools": "lookups"}),
    "commit-conventions": SkillTask(
        "commit-conventions/2",
        {
            "areal/reward/boxed.py": "areal/reward/math_verify.py",
            "fix(reward): keep the last boxed answer": "feat(reward): count the boxes of a completion",
        },
    ),
    "create-pr": SkillTask(
        "create-pr/1",
        {"feat(reward): partial credit": "feat(utils): overlap and width of spans"},
        settings=QUICK_CHECKS,
    ),
    "debug-distributed": SkillTask(
        "debug-distributed/2",
        {"runs/RUN": None, "CONFIG.yaml": None},  # what hangs is a function, not a run
        (
            Writing(LEFT_EARLY, AGREE, before='    if number is None:\n        return float("-inf")\n'),
            Writing(
                LEFT_EARLY,
                AGREE,
                before="torch.tensor(number,",
                after='torch.tensor(float("-inf") if number is None else number,',
            ),
        ),
    ),
    "review-pr": SkillTask(
        "review-pr/1",
        {"12": None},  # the branch has no pull request
        (Writing("`path:line`, what is wrong, when it shows", "REVIEW.md", REVIEW),),
        meets=frozenset({1, 10}),
    ),
    "translate-doc-zh": SkillTask(
        "translate-doc-zh/1",
        writings=(Writing("Work task by task", "docs/zh/concepts.md", before=MARK, after=CHINESE + MARK),),
        meets=frozenset({10}),
    ),
    "upgrade-deps": SkillTask(
        "upgrade-deps/1",
        {"/tmp/shop": SCRATCH, "make test": "make lint"},  # `make test` is what this test is part of
        meets=frozenset({10}),
    ),
}
NEEDED = {
    "add-dataset": "areal-new dataset trivia --from rows.jsonl    ",
    "add-environment": "areal-new environment number-game --style text --no-test",
    "add-model": "areal-new model granite        ",
    "add-reward": "areal-new reward letters --style choice --letters A-E\n",
    "add-unit-tests": "Put the file where the code is mirrored",
    "add-workflow": "areal-new workflow second-try --style multi_turn --max-turns 2 --no-test",
    "commit-conventions": "git commit -m",
    "create-pr": "--no-push    #",
    "debug-distributed": LEFT_EARLY,
    "review-pr": "`path:line`, what is wrong",
    "translate-doc-zh": 'areal-docs zh-mark docs/zh/concepts.md       # "this',
    "upgrade-deps": "areal-audit --write ",
}
"""What each text must not leave out: without the line nobody gets through."""
