"""The shared last step of loaders: complaints with rows, templates, dropped rows; and chats in both written forms."""

from __future__ import annotations

import pytest

from areal.api import ConfigError, DataError
from areal.dataset.building import preference_dataset, rl_dataset, sft_dataset, user_prompt
from areal.dataset.chats import as_chat, chat_problem, split_last_turn
from areal.dataset.encoding import byte_tokenizer, character_tokenizer
from areal.dataset.reading import RawRows
from areal.dataset.schema import require_numbers

SHARE = [{"from": "system", "value": "s"}, {"from": "human", "value": "h"}, {"from": "gpt", "value": "g", "weight": 1}]


def raw(*rows):
    return RawRows(
        source="rows.jsonl", unit="line", numbers=[number + 3 for number in range(len(rows))], rows=list(rows)
    )


def test_every_row_that_cannot_be_encoded_is_named():
    rows = [{"messages": text} for text in ("12", "1x", "2", "x")]
    with pytest.raises(DataError, match=r"2 bad rows: line 4: the tokenizer cannot encode '1x'.*; line 6: ") as caught:
        rl_dataset(raw(*rows), rows, character_tokenizer("12"), None)
    assert str(caught.value).startswith("rows.jsonl: ")


def test_chats_need_a_template():
    rows = [{"messages": [{"role": "user", "content": "Hi"}]}]
    with pytest.raises(ConfigError, match=r"rows\.jsonl holds chats but the tokenizer has no chat template"):
        rl_dataset(raw(*rows), rows, byte_tokenizer(), None)
    with pytest.raises(ConfigError, match="no chat template"):
        sft_dataset(raw({}), [([{"role": "user", "content": "Hi"}], "Hello")], byte_tokenizer(), None)


def test_a_plain_prompt_ends_with_a_line_break_and_a_chat_does_not():
    assert user_prompt("6*7?", "Think.", byte_tokenizer()) == "6*7?\nThink.\n"
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages }}"
    assert user_prompt("6*7?", "", tokenizer) == [{"role": "user", "content": "6*7?"}]


def test_only_answers_are_compared_and_long_or_equal_pairs_go(caplog):
    triples = [("p:", "yes", "no"), ("p:", "same", "same"), ("p:", "long " * 9, "no"), ("p:", "yes", " ")]
    with caplog.at_level("WARNING", logger="areal"):
        rows = preference_dataset(raw({}, {}, {}, {}), triples, byte_tokenizer(), 10)
    assert len(rows) == 1
    assert rows[0]["chosen_loss_mask"] == [0, 0, 1, 1, 1, 1]
    assert byte_tokenizer().decode(rows[0]["rejected_ids"]) == "p:no<eos>"
    assert "dropped 2 of 4 pairs with an empty or equal answer" in caplog.text
    assert "dropped 1 of 2 rows with more than 10 tokens" in caplog.text


def test_conversations_become_chats():
    assert chat_problem(SHARE, answered=True) == ""
    assert split_last_turn(SHARE) == (
        [{"role": "system", "content": "s"}, {"role": "user", "content": "h"}],
        "g",
    )
    assert as_chat([{"role": "tool", "content": "t", "name": "x"}]) == [{"role": "tool", "content": "t"}]


@pytest.mark.parametrize(
    ("turns", "problem"),
    [
        (SHARE, "messages end with an assistant turn"),
        ([{"role": "user", "content": " "}], "messages is an empty prompt"),
        ({"role": "user"}, "expected a list of turns, found dict"),
        (["Hi"], "turn 0: 'Hi' has neither role and content nor from and value"),
    ],
)
def test_a_chat_that_cannot_be_answered_says_why(turns, problem):
    assert chat_problem(turns, answered=False).startswith(problem)


def test_numbers_are_required_by_row():
    require_numbers(raw({"level": 1}, {"level": 1.5}), "level")
    with pytest.raises(
        DataError, match="2 bad rows: line 4: level is bool, expected a number; line 5: no column 'level'"
    ):
        require_numbers(raw({"level": 1}, {"level": True}, {"lever": 1}), "level")
