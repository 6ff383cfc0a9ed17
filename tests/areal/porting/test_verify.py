"""`python -m areal.porting.verify`: what it says about arguments, and that verifying nothing is no success."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from areal import models
from areal.models.registry import MODELS
from areal.porting import verify


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["verify", *arguments])
    return verify.main()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "holds a list instead of an object"),
        ('{"models": [1]}', "models in .* is not a list of objects with model_type, tiny_kwargs"),
        ('{"synthetic": {}}', "synthetic in .* is not a list of objects with base, name, overrides"),
    ],
)
def test_a_file_of_configs_that_is_none_is_refused(monkeypatch, capsys, tmp_path, content, message):
    file = tmp_path / "tiny.json"
    file.write_text(content)
    with pytest.raises(verify.ArgumentsError, match=message):
        verify.subjects(["qwen3"], file)
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, "qwen3", "--tiny", str(file))
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_type_that_nothing_can_be_compared_for_is_refused(tmp_path):
    with pytest.raises(verify.ArgumentsError, match=f"'nosuch' is not registered; registered are {', '.join(MODELS)}"):
        verify.subjects(["nosuch"], None)
    with pytest.raises(verify.ArgumentsError, match="'bert' is not registered"):
        verify.subjects(["bert"], None)
    with pytest.raises(verify.ArgumentsError, match="cannot be read"):
        verify.subjects(["qwen3"], tmp_path / "none.json")


def test_a_family_of_which_nothing_loads_is_not_verified(monkeypatch, capsys, tmp_path):
    unknown = {"model_type": "qwen3", "tiny_kwargs": {"vocab_size": 32, "use_mystery": True}}
    small = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "head_dim": 8,
    }
    unknown["tiny_kwargs"] |= small | {"num_key_value_heads": 1, "max_position_embeddings": 64, "layer_types": None}
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps({"models": [unknown]}))
    monkeypatch.setattr(verify, "perturbed", lambda *arguments: [("base", {})])
    assert run(monkeypatch, "qwen3", "--tiny", str(file), "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert "use_mystery" in found["refusals"][0]["reason"]
    del unknown["tiny_kwargs"]["use_mystery"]
    file.write_text(json.dumps({"models": [unknown]}))
    assert run(monkeypatch, "qwen3", "--tiny", str(file), "--json") == 0
    assert json.loads(capsys.readouterr().out)["equal"] == 1


SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(("factor", "wrong"), [(1.0, False), (1.01, True)])
def test_weights_that_are_read_as_others_are_wrong(monkeypatch, factor, wrong):
    read = models.from_pretrained

    def altered(*arguments):
        model = read(*arguments)
        with torch.no_grad():
            model.layers[0].mlp.down_proj.weight.mul_(factor)
        return model

    monkeypatch.setattr(models, "from_pretrained", altered)
    assert (verify.check("qwen3", SMALL, seed=3) > 1) is wrong


@pytest.mark.sample(1)
@pytest.mark.parametrize(("flips", "wrong"), [(1, False), (3, True)])
def test_a_choice_between_equal_scores_is_judged_with_other_weights(monkeypatch, flips, wrong):
    computed, singles = verify.packed_logits, []

    def flipping(model, documents):
        logits = computed(model, documents)
        if logits.dtype == torch.float64:
            return logits
        singles.append(logits)
        return logits + 1.0 if len(singles) <= flips else logits

    monkeypatch.setattr(verify, "packed_logits", flipping)
    assert (verify.check("qwen3", SMALL, seed=3) > 1) is wrong
    assert len(singles) == min(flips + 1, verify.DRAWS)


def test_only_small_differences_of_unstable_configs_are_rounding():
    assert verify.is_rounding(2.5, 0.46)
    assert not verify.is_rounding(2.5, 0.2), "a stable config"
    assert not verify.is_rounding(12000.0, 1.2), "far more than rounding"
    assert not verify.is_rounding(2.5, 0.0), "nothing known of the rounding"
