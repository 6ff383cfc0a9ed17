"""Every assistant turn of a conversation is learned, exactly, or the row is refused with what to do."""

from __future__ import annotations

import base64
import json
from itertools import pairwise

import pytest

from areal.api import ConfigError, DataError
from areal.dataset.config import DatasetConfig
from areal.dataset.conversations import conversation_problem, conversation_rows
from areal.dataset.encoding import byte_tokenizer
from areal.dataset.loading import load_dataset
from tests.support.vision import encoded, noise

CHATML = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{%- generation -%}"
    "{{ m.content }}<|im_end|>{%- endgeneration -%}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}<|end|>\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
# As Qwen3 does: an empty thought in the last answer and in the prompt, none in earlier ones.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% if loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)
PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "6*7?"},
    {"role": "assistant", "content": "42"},
    {"role": "user", "content": "and 6*8?"},
    {"role": "assistant", "content": "48, of course"},
]


def tokenizer(template):
    made = byte_tokenizer()
    made.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    made.bos_token = "<|im_start|>"
    made.chat_template = template
    return made


def learned(row, made):
    """Texts of the learned stretches."""
    found, before = [], 0
    for token, mask in zip(row["input_ids"], row["loss_mask"], strict=True):
        if mask and not before:
            found.append([])
        if mask:
            found[-1].append(token)
        before = mask
    return [made.decode(ids) for ids in found]


@pytest.mark.parametrize("template", [CHATML, MARKED, LLAMA], ids=["chatml", "marked", "llama"])
def test_every_assistant_turn_is_learned_with_its_end(template):
    made = tokenizer(template)
    (row,) = conversation_rows(CHAT, made)
    assert learned(row, made) == ["42<|im_end|>", "48, of course<|im_end|>"]
    # The tokens are the template's own, up to the end of the last answer.
    whole = made.apply_chat_template(CHAT, tokenize=True, return_dict=False)
    assert row["input_ids"] == whole[: len(row["input_ids"])]
    assert made.decode(whole[len(row["input_ids"]) :]).strip() == ""


@pytest.mark.parametrize("template", [CHATML, LLAMA, THINKING], ids=["chatml", "llama", "thinking"])
def test_one_answer_is_learned_as_rl_would_sample_it(template):
    made = tokenizer(template)
    (row,) = conversation_rows(CHAT[:3], made)
    prompt = made.apply_chat_template(CHAT[:2], add_generation_prompt=True, tokenize=True, return_dict=False)
    assert row["input_ids"] == [*prompt, *made.encode("42"), made.eos_token_id]
    assert sum(row["loss_mask"]) == 3


def test_a_template_that_rewrites_earlier_turns_is_refused_with_the_way_out():
    made = tokenizer(THINKING)
    with pytest.raises(
        DataError, match=r"writes the turns before assistant turn 1 differently .* token \d+: .42.* instead of .<think>"
    ) as e:
        conversation_rows([*CHAT[1:3], *CHAT[1:3], *CHAT[3:]], made)
    assert 'turns to "each"' in e.value.fix


def test_each_turn_in_a_row_of_its_own_is_exact_for_such_a_template():
    made = tokenizer(THINKING)
    rows = conversation_rows(CHAT, made, turns="each")
    assert [learned(row, made) for row in rows] == [["42<|im_end|>"], ["48, of course<|im_end|>"]]
    second = made.decode(rows[1]["input_ids"])
    assert second.count("<think>") == 1, "the earlier answer stands as the model will see it"
    assert [learned(row, made) for row in conversation_rows(CHAT, made, turns="last")] == [["48, of course<|im_end|>"]]


def test_calls_of_tools_are_learned_and_their_results_are_not():
    made = tokenizer(CHATML)
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    chat = [
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "three"},
    ]
    (row,) = conversation_rows(chat, made, tools=[{"name": "add"}])
    assert learned(row, made) == [
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call><|im_end|>', "three<|im_end|>",
    ]  # fmt: skip
    assert made.decode(row["input_ids"]).startswith('<|im_start|>system\n[{"name": "add"}]')
    first, second = conversation_rows(chat, made, tools=[{"name": "add"}], turns="each")
    assert (learned(first, made), learned(second, made)) == ([learned(row, made)[0]], [learned(row, made)[1]])


def test_a_template_without_ends_of_turns_still_teaches_to_stop():
    made = tokenizer(PLAIN)
    (row,) = conversation_rows(CHAT, made)
    assert learned(row, made)[-1] == "48, of course\n<|im_end|>"


def test_marks_that_miss_a_turn_are_refused():
    made = tokenizer(MARKED.replace("m.role == 'assistant'", "m.role == 'assistant' and loop.last"))
    with pytest.raises(DataError, match="marks 1 of 2 assistant turns"):
        conversation_rows(CHAT, made)


def test_what_a_template_refuses_is_said():
    made = tokenizer("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(DataError, match="the chat template refuses the conversation: roles must alternate"):
        conversation_rows(CHAT, made)
    with pytest.raises(DataError, match="turn 2 contains the control token"):
        conversation_rows([*CHAT[:2], {"role": "assistant", "content": "a<|im_end|>"}], tokenizer(CHATML))
    with pytest.raises(ConfigError, match="need a tokenizer with a chat template"):
        conversation_rows(CHAT, byte_tokenizer())


@pytest.mark.parametrize(
    ("chat", "problem"),
    [
        (CHAT, ""),
        (CHAT[:1], "expected a chat of at least two turns"),
        (CHAT[:4], "ends with a turn of 'user'"),
        ([*CHAT[:2], {"role": "assistant", "content": " "}], "turn 2: the assistant turn is empty"),
        ([{"role": "user"}, CHAT[2]], "turn 0: a turn of 'user' without content"),
        (
            [{"role": "user", "content": "a", "tool_calls": [1]}, CHAT[2]],
            "turn 0: only an assistant turn has tool_calls",
        ),
        ([{"role": "user", "content": 3}, CHAT[2]], "turn 0: content is int"),
        (["Hi", CHAT[2]], "turn 0: 'Hi' is not a mapping"),
    ],
)
def test_chats_that_cannot_be_learned_say_why(chat, problem):
    found = conversation_problem(chat)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_a_file_of_conversations_names_the_line_of_one_that_is_not_exact(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text("\n".join(json.dumps({"messages": chat}) for chat in (CHAT[:3], CHAT, CHAT[1:3])))
    config = DatasetConfig(name="jsonl", path=str(file))
    made = tokenizer(THINKING)
    with pytest.raises(DataError, match=r"1 bad row: line 2: the chat template writes .*; set options\.turns"):
        load_dataset(config, made, kind="sft")
    rows = load_dataset(DatasetConfig(name="jsonl", path=str(file), options={"turns": "each"}), made, kind="sft")
    assert len(rows) == 4
    with pytest.raises(ConfigError, match="turns is 'first', expected one of all, each, last"):
        load_dataset(DatasetConfig(name="jsonl", path=str(file), options={"turns": "first"}), made, kind="sft")


FILES = [base64.b64encode(encoded(noise(4, 4, seed=seed))).decode() for seed in range(3)]
PICTURES = [
    {"role": "user", "content": "<image>how many?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "and of <image><image>"},
    {"role": "assistant", "content": "5"},
]


def with_marks(row, made):
    """Text of a row with marks where its images belong."""
    bounds = [0, *row["image_places"], len(row["input_ids"])]
    pieces = [made.decode(row["input_ids"][begin:end]) for begin, end in pairwise(bounds)]
    return "<image>".join(pieces)


@pytest.mark.parametrize("template", [CHATML, MARKED, LLAMA], ids=["chatml", "marked", "llama"])
def test_images_of_several_turns_stand_where_their_marks_are_and_every_answer_is_learned(template):
    made = tokenizer(template)
    (row,) = conversation_rows(PICTURES, made, images=FILES)
    assert learned(row, made) == ["2<|im_end|>", "5<|im_end|>"]
    assert row["images"] == FILES
    whole = made.apply_chat_template(PICTURES, tokenize=False)
    assert with_marks(row, made) == whole.rstrip("\n")
    assert len(row["input_ids"]) == len(row["loss_mask"])


@pytest.mark.parametrize("template", [CHATML, THINKING], ids=["chatml", "thinking"])
def test_each_answer_has_the_images_before_it(template):
    made = tokenizer(template)
    rows = conversation_rows(PICTURES, made, images=FILES, turns="each")
    assert [learned(row, made) for row in rows] == [["2<|im_end|>"], ["5<|im_end|>"]]
    assert [row["images"] for row in rows] == [FILES[:1], FILES]
    prompt = made.apply_chat_template(PICTURES[:3], add_generation_prompt=True, tokenize=False)
    assert with_marks(rows[1], made) == f"{prompt}5<|im_end|>"


def test_images_that_tools_return_are_read_and_calls_are_learned():
    made = tokenizer(CHATML)
    call = {"type": "function", "function": {"name": "look", "arguments": {}}}
    chat = [
        {"role": "user", "content": "how many?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "<image>"},
        {"role": "assistant", "content": "3"},
    ]
    (row,) = conversation_rows(chat, made, images=FILES[:1])
    assert learned(row, made)[1] == "3<|im_end|>"
    assert "tool\n<image><|im_end|>" in with_marks(row, made)


@pytest.mark.parametrize(
    ("chat", "images", "words"),
    [
        (PICTURES, FILES[:2], "3 <image> marks for 2 images"),
        (
            [*PICTURES[:3], {"role": "assistant", "content": "<image>"}],
            FILES,
            "turn 3 is the assistant's and has a mark",
        ),
        ([{"role": "user", "content": "<|im_start|><image>"}, *PICTURES[1:2]], FILES[:1], "turn 0 .*control token"),
    ],
)
def test_conversations_whose_images_have_no_place_are_refused(chat, images, words):
    with pytest.raises(DataError, match=words):
        conversation_rows(chat, tokenizer(CHATML), images=images)


def test_a_file_has_conversations_with_images_and_without(tmp_path):
    path = tmp_path / "train.jsonl"
    rows = [{"messages": PICTURES, "images": FILES}, {"messages": CHAT}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = DatasetConfig(name="jsonl", path=str(path))
    made = tokenizer(CHATML)
    found = load_dataset(config, made, kind="sft", place_images=lambda dataset, _: dataset)
    assert [found["images"][0], found["images"][1] or []] == [FILES, []]
    assert len(found["image_places"][0]) == 3
    with pytest.raises(ConfigError, match="the model reads text only"):
        load_dataset(config, made, kind="sft")
