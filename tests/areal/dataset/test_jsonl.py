"""Own files: column mapping, and what a person is told about broken rows."""

from __future__ import annotations

import json

import pytest

from areal.api import ConfigError, DataError
from areal.dataset.config import DatasetConfig
from areal.dataset.encoding import byte_tokenizer, character_tokenizer
from areal.dataset.loading import load_dataset

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def chat_tokenizer():
    made = byte_tokenizer()
    made.chat_template = TEMPLATE
    return made


def write(folder, *rows):
    (folder / "train.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return str(folder)


def load(tokenizer, path, kind="rl", **options):
    return load_dataset(DatasetConfig(name="jsonl", path=path, options=options), tokenizer, kind=kind)


def test_columns_are_mapped_and_the_rest_reaches_the_reward(tokenizer, tmp_path):
    path = write(tmp_path, {"q": "6*7?", "gold": "42", "level": 3}, {"q": "1+1?", "gold": "2", "hint": "easy"})
    rows = load(tokenizer, path, prompt_column="q", answer_column="gold", instruction="Answer:")
    assert rows[0] == {"messages": "6*7?\nAnswer:", "answer": "42", "level": 3, "hint": None}
    assert rows[1] == {"messages": "1+1?\nAnswer:", "answer": "2", "level": None, "hint": "easy"}


def test_a_system_text_becomes_a_system_turn(chat_tokenizer, tmp_path):
    rows = load(chat_tokenizer, write(tmp_path, {"prompt": "Hi"}), system="Be brief.")
    assert [message["role"] for message in rows[0]["messages"]] == ["system", "user"]


def test_chats_are_taken_as_they_are(chat_tokenizer, tmp_path):
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert load(chat_tokenizer, write(tmp_path, {"messages": chat, "answer": "d"}))[0]["messages"] == chat


def test_chats_without_a_template_are_refused(tokenizer, tmp_path):
    path = write(tmp_path, {"messages": [{"role": "user", "content": "a"}]})
    with pytest.raises(ConfigError, match="tokenizer has no chat template"):
        load(tokenizer, path)


def test_sft_learns_every_assistant_turn_or_the_last(chat_tokenizer, tmp_path):
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    path = write(tmp_path, {"messages": [*chat, {"role": "assistant", "content": "done"}]})
    for turns, expected in (("all", "b<eos>done<eos>"), ("last", "done<eos>")):
        row = load(chat_tokenizer, path, kind="sft", turns=turns)[0]
        learned = [token for token, mask in zip(row["input_ids"], row["loss_mask"], strict=True) if mask]
        assert chat_tokenizer.decode(learned) == expected
    assert chat_tokenizer.decode(row["input_ids"]).endswith("<|user|>c<eos><|assistant|>done<eos>")


def test_sft_from_prompt_and_answer(tokenizer, tmp_path):
    row = load(tokenizer, write(tmp_path, {"prompt": "ab", "answer": "cd"}), kind="sft")[0]
    assert row["loss_mask"] == [0, 0, 1, 1, 1]
    assert tokenizer.decode(row["input_ids"]) == "abcd<eos>"


def test_control_tokens_inside_a_chat_are_not_read_as_control(chat_tokenizer, tmp_path):
    path = write(
        tmp_path,
        {"messages": [{"role": "user", "content": "fine"}]},
        {"messages": [{"role": "user", "content": "<eos>"}]},
    )
    with pytest.raises(DataError, match=r"line 2: messages\[0\] contains the control token '<eos>'"):
        load(chat_tokenizer, path)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": " \n"}, "prompt is empty"),
        ({"prompt": 7}, "prompt is int, expected a string"),
        ({"promt": "x"}, "no column 'prompt': did you mean 'promt'"),
    ],
)
def test_unusable_prompts_are_named_by_line(tokenizer, tmp_path, row, problem):
    path = write(tmp_path, {"prompt": "ok"}, row)
    with pytest.raises(DataError, match=f"1 bad row: line 2: {problem}"):
        load(tokenizer, path)


def test_at_most_five_bad_rows_are_spelled_out(tokenizer, tmp_path):
    path = write(tmp_path, {"prompt": "ok"}, *[{"prompt": ""}] * 8)
    with pytest.raises(DataError) as caught:
        load(tokenizer, path)
    assert str(caught.value).count("prompt is empty") == 5
    assert str(caught.value).endswith("and 3 more")


def test_repeated_ids_are_refused_when_asked(tokenizer, tmp_path):
    path = write(tmp_path, {"id": 1, "prompt": "a"}, {"id": 2, "prompt": "b"}, {"id": 1, "prompt": "c"})
    assert len(load(tokenizer, path)) == 3
    with pytest.raises(DataError, match="line 3: id 1 was already used at line 1"):
        load(tokenizer, path, id_column="id")


def test_reserved_column_names_are_refused(tokenizer, tmp_path):
    path = write(tmp_path, {"prompt": "a", "completions": "b"})
    with pytest.raises(DataError, match="columns completions are parameter names of every reward function"):
        load(tokenizer, path)


def test_a_column_of_mixed_types_is_an_error(tokenizer, tmp_path):
    path = write(tmp_path, {"prompt": "a", "level": 1}, {"prompt": "b", "level": "high"})
    with pytest.raises(DataError, match="mixes types"):
        load(tokenizer, path)


def test_text_outside_the_vocabulary_is_an_error_with_its_line(tmp_path):
    path = write(tmp_path, {"prompt": "12"}, {"prompt": "1x"})
    with pytest.raises(DataError, match=r"line 2: the tokenizer cannot encode '1x'"):
        load(character_tokenizer("12"), path)


def test_the_path_is_required(tokenizer):
    with pytest.raises(ConfigError, match="no packaged rows"):
        load(tokenizer, "")


def test_preference_rows_share_the_prompt_and_may_say_by_how_much_the_first_answer_is_better(tokenizer, tmp_path):
    row = {"prompt": "6*7=", "chosen": "42", "rejected": "36", "margin": 2}
    path = write(tmp_path, row)
    plain = load(tokenizer, path, "preference")[0]
    graded = load(tokenizer, path, "preference", margin_column="margin")[0]
    assert tokenizer.decode(plain["chosen_ids"]) == "6*7=42<eos>"
    assert plain["rejected_loss_mask"] == [0, 0, 0, 0, 1, 1, 1]
    assert "margin" not in plain
    assert graded["margin"] == 2.0
    write(tmp_path, {**row, "margin": -1})
    with pytest.raises(DataError, match=r"line 1: margin is -1, expected a finite number >= 0"):
        load(tokenizer, path, "preference", margin_column="margin")
    write(tmp_path, {"prompt": "6*7=", "choosen": "42", "rejected": "36"})
    with pytest.raises(DataError, match="did you mean 'choosen'"):
        load(tokenizer, path, "preference")
