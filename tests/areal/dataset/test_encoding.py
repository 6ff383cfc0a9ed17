"""Built tokenizers round-trip and survive saving; mismatches with a model are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from areal.api import ConfigError
from areal.dataset.encoding import byte_tokenizer, character_tokenizer, check_tokenizer, load_tokenizer

DIGITS = "0123456789+-*/="
CHARACTERS = character_tokenizer(DIGITS)
BYTES = byte_tokenizer()


@given(st.text(alphabet=DIGITS))
def test_characters_round_trip_one_token_each(text):
    ids = CHARACTERS.encode(text)
    assert len(ids) == len(text)
    assert CHARACTERS.decode(ids) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_round_trip_any_text(text):
    ids = BYTES.encode(text)
    assert BYTES.decode(ids) == text


def test_special_tokens_are_distinct_and_cost_nothing_extra():
    assert (len(CHARACTERS), CHARACTERS.pad_token_id, CHARACTERS.eos_token_id) == (17, 0, 1)
    assert (len(BYTES), BYTES.pad_token_id, BYTES.eos_token_id) == (258, 256, 257)
    with_bos = character_tokenizer("01", bos=True)
    assert (with_bos.pad_token_id, with_bos.eos_token_id, with_bos.bos_token_id) == (0, 1, 2)
    assert with_bos.encode("01") == [3, 4]


@pytest.mark.parametrize("made", [CHARACTERS, BYTES], ids=["characters", "bytes"])
def test_a_saved_tokenizer_loads_as_the_same(made, tmp_path):
    made.save_pretrained(tmp_path)
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(str(tmp_path))):
        assert loaded.get_vocab() == made.get_vocab()
        assert loaded.encode("12*3=") == made.encode("12*3=")
        assert loaded.decode([*loaded.encode("12*3="), loaded.eos_token_id]) == "12*3=<eos>"
        assert (loaded.pad_token_id, loaded.eos_token_id) == (made.pad_token_id, made.eos_token_id)


def test_names_build_tokenizers():
    assert load_tokenizer(f"characters:{DIGITS}").get_vocab() == CHARACTERS.get_vocab()
    assert len(load_tokenizer("bytes:")) == 258
    with pytest.raises(ConfigError, match="no tokenizer"):
        load_tokenizer("")
    with pytest.raises(ConfigError, match="expected at least one character and none twice"):
        load_tokenizer("characters:00")


def test_a_folder_without_tokenizer_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_tokenizer(str(tmp_path))


def test_a_malformed_tokenizer_is_an_error_of_the_configuration(tmp_path):
    CHARACTERS.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ConfigError, match="cannot be read: AttributeError"):
        load_tokenizer(str(tmp_path))


def test_mismatches_with_the_model_are_refused():
    check_tokenizer(CHARACTERS, 17)
    check_tokenizer(CHARACTERS, 64)
    with pytest.raises(ConfigError, match="17 tokens but the model only 16 embeddings"):
        check_tokenizer(CHARACTERS, 16)
    with pytest.raises(ConfigError, match="no chat template"):
        check_tokenizer(CHARACTERS, 17, needs_chat_template=True)
    same = character_tokenizer("01")
    same.pad_token = "<eos>"
    check_tokenizer(same, 17)  # padding is never computed on, so nothing can mistake it for an end
    endless = character_tokenizer("01")
    endless.eos_token = None
    with pytest.raises(ConfigError, match="no end-of-sequence token"):
        check_tokenizer(endless, 17)
