"""Modeling code for older versions of transformers, or with parts missing: what loads, and what is said of the rest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
import transformers
from transformers import modeling_rope_utils

from areal.porting.probe.instance import build, export, logits, make_tokens
from areal.porting.probe.shims import CONFIG_ATTRIBUTES, NAMES
from areal.porting.probe.subject import load_modules, resolve
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from pathlib import Path

MODELING = """
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel


class OldConfig(PreTrainedConfig):
    model_type = "old"

    def __init__(self, width=16, **kwargs):
        self.width = width
        super().__init__(**kwargs)


class OldForCausalLM(PreTrainedModel):
    config_class = OldConfig
    _tied_weights_keys = ["speech.weight"]

    def __init__(self, config):
        super().__init__(config)
        self.lookup = nn.Embedding(64, config.width)
        self.speech = nn.Linear(config.width, 64, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.lookup

    def get_output_embeddings(self):
        return self.speech

    def forward(self, input_ids, head_mask=None, **kwargs):
        assert self.get_head_mask(head_mask, 2) == [None, None]
        return (self.speech(self.lookup(input_ids)),)
"""


def folder_of(folder: Path, text: str, **fields: object) -> Path:
    (folder / "modeling_old.py").write_text(text, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "old", **fields}), encoding="utf-8")
    return folder


@pytest.mark.parametrize("place", NAMES)
def test_a_name_that_is_gone_can_be_imported_by_foreign_code_only(tmp_path: Path, place: str) -> None:
    module, _, name = place.partition(":")
    file = tmp_path / "modeling_old.py"
    file.write_text(f"from {module} import {name}\nfound = {name}\n", encoding="utf-8")
    (loaded,) = load_modules([file], [tmp_path])
    assert loaded.found is NAMES[place]
    known: dict[str, object] = {}
    with pytest.raises(ImportError):
        exec(f"from {module} import {name}", known)


def test_a_list_of_tied_weights_ties_the_head_and_is_saved_once(tmp_path: Path) -> None:
    subject = resolve(str(folder_of(tmp_path, MODELING)), trust=True)
    tied, apart = (build(subject, {"model_type": "old", "tie_word_embeddings": flag}) for flag in (True, False))
    assert tied.model.speech.weight is tied.model.lookup.weight
    assert apart.model.speech.weight is not apart.model.lookup.weight
    assert (export(tied).keys(), len(export(apart))) == ({"lookup.weight"}, 2)
    assert torch.isfinite(logits(tied, make_tokens(tied, batch=1, length=5, seed=0))).all()


def test_configs_have_the_attributes_that_all_configs_had(tmp_path: Path) -> None:
    config = resolve(str(folder_of(tmp_path, MODELING)), trust=True).config_class()
    assert {name: getattr(config, name) for name in CONFIG_ATTRIBUTES} == CONFIG_ATTRIBUTES
    assert not hasattr(transformers.PreTrainedConfig(), "pruned_heads")


def test_plain_frequencies_are_those_of_the_rotary_table(tmp_path: Path) -> None:
    text = "from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS\nfound = ROPE_INIT_FUNCTIONS['default']\n"
    folder_of(tmp_path, text)
    (loaded,) = load_modules([tmp_path / "modeling_old.py"], [tmp_path])
    config = transformers.LlamaConfig(head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    frequencies, factor = loaded.found(config)
    assert torch.allclose(frequencies, 500.0 ** -(torch.arange(0, 8, 2) / 8))
    assert factor == 1.0
    assert "linear" in modeling_rope_utils.ROPE_INIT_FUNCTIONS


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("import flash_nothing", "needs the package flash_nothing, which is not installed: pip install flash_nothing"),
        ("from .parts import Norm", r"parts\.py is missing.*copy all files"),
        ("import transformers.gone", r"transformers [\d.]+ has no module transformers\.gone"),
    ],
)
def test_what_an_import_lacks_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(SubjectError, match=message):
        resolve(str(folder_of(tmp_path, f"{line}\n{MODELING}")), trust=True)


def test_files_that_others_import_belong_to_the_source(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text("from helpers import SIZE\n", encoding="utf-8")
    (tmp_path / "helpers.py").write_text("SIZE = 3\n", encoding="utf-8")
    (tmp_path / "unused.py").write_text("raise AssertionError\n", encoding="utf-8")
    subject = resolve(str(folder_of(tmp_path, f"from .parts import SIZE\n{MODELING}")), trust=True)
    assert [file.name for file in subject.source_files] == ["modeling_old.py", "helpers.py", "parts.py"]
