"""Tokenizers and the scripted engine of the workflow tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from areal.dataset.encoding import byte_tokenizer, character_tokenizer

# Helper modules beside the tests; pytest's importlib mode leaves the path alone.
sys.path.append(str(Path(__file__).parent))

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FORGETFUL_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


@pytest.fixture(scope="session")
def digits():
    return character_tokenizer("0123456789+-*/=?")


@pytest.fixture(scope="session")
def chat():
    made = byte_tokenizer()
    made.chat_template = CHAT_TEMPLATE
    return made


@pytest.fixture(scope="session")
def forgetful():
    made = byte_tokenizer()
    made.chat_template = FORGETFUL_TEMPLATE
    return made
