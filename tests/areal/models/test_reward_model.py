"""Reward models on disk: transformers reads what we write, and we read what transformers writes."""

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from areal.algorithm.preference import final_scores
from areal.api import CheckpointError, ModelError
from areal.engine.config import TrainEngineConfig
from areal.engine.train.engine import TrainingEngine
from areal.models import from_config, save_pretrained
from areal.models.reward_model import load_reward_model, save_reward_model
from areal.models.value_head import ValueModel

CONFIG = {
    "vocab_size": 29,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
TOKENS = [[5, 9, 2, 7], [4, 4, 11], [20, 1, 2, 3, 8, 28]]


def make_engine(model_type="qwen3", *, tied=False, bias=False):
    backbone = from_config({**CONFIG, "model_type": model_type, "tie_word_embeddings": tied}, seed=3)
    model = ValueModel(backbone, bias=bias)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    return TrainingEngine(model, config=TrainEngineConfig(device="cpu"), is_critic=True)


def scores_of(model):
    found = []
    for tokens in TOKENS:
        bounds = torch.tensor([0, len(tokens)], dtype=torch.int32)
        values = model(torch.tensor(tokens), torch.arange(len(tokens)), bounds, len(tokens))
        found.append(final_scores(values[None], torch.tensor([len(tokens)])))
    return torch.cat(found)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("model_type", "tied"), [("qwen3", False), ("qwen3", True), ("qwen2", False)])
def test_transformers_gives_the_same_scores(tmp_path, model_type, tied):
    engine = make_engine(model_type, tied=tied)
    folder = tmp_path / "model"
    save_reward_model(engine.save_pretrained, folder, pad_token_id=0)
    theirs, report = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    width = max(map(len, TOKENS))
    padded = torch.tensor([tokens + [0] * (width - len(tokens)) for tokens in TOKENS])
    mask = torch.tensor([[1] * len(tokens) + [0] * (width - len(tokens)) for tokens in TOKENS])
    with torch.no_grad():
        expected = theirs(padded, attention_mask=mask).logits[:, 0]
        torch.testing.assert_close(scores_of(engine.model), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(scores_of(load_reward_model(folder)), expected, atol=1e-5, rtol=1e-5)


def test_what_transformers_saves_is_read(tmp_path):
    first = tmp_path / "first"
    save_reward_model(make_engine().save_pretrained, first, pad_token_id=0)
    AutoModelForSequenceClassification.from_pretrained(first).save_pretrained(tmp_path / "second")
    torch.testing.assert_close(
        scores_of(load_reward_model(tmp_path / "second")), scores_of(load_reward_model(first)), rtol=0, atol=0
    )


def test_a_folder_is_replaced_whole_and_foreign_ones_are_left_alone(tmp_path):
    folder = tmp_path / "model"
    for _ in range(2):
        save_reward_model(make_engine().save_pretrained, folder, pad_token_id=0)
    assert {file.name for file in folder.iterdir()} == {
        "backbone.safetensors",
        "config.json",
        "model.safetensors.index.json",
        "score.safetensors",
    }
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="not a checkpoint folder"):
        save_reward_model(make_engine().save_pretrained, tmp_path / "notes", pad_token_id=0)

    def fails(path):
        raise OSError("no space left on device")

    with pytest.raises(CheckpointError, match="no space left"):
        save_reward_model(fails, folder, pad_token_id=0)
    assert scores_of(load_reward_model(folder)).isfinite().all()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "notes"]


def test_what_is_no_reward_model_is_refused(tmp_path):
    with pytest.raises(ModelError, match="a weight and nothing else"):
        save_reward_model(make_engine(bias=True).save_pretrained, tmp_path / "bias", pad_token_id=0)
    plain = tmp_path / "plain"
    save_pretrained(from_config({**CONFIG, "model_type": "qwen3"}), plain)
    with pytest.raises(ModelError, match="is not a reward model"):
        load_reward_model(plain)
    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3ForSequenceClassification"]}))
    with pytest.raises(ModelError, match="is not a reward model"):
        load_reward_model(plain)
