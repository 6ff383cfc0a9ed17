"""A newcomer on the day of an invented Qwen4: a folder with code, a proven family, SFT, GRPO, a rising reward.

The model has gated delta rules with gated attention in every n-th layer, code that `auto_map` names, and, in the second
form, a text model inside a whole one: `text_config`, and `model.language_model.` before the names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from areal.porting.probe.lookup import locate
from tooling.new.matrix import Sandbox

ROOT = Path(__file__).resolve().parents[4]
QWEN4 = ROOT / "tests/areal/porting/novel/qwen4"
TOKENIZER = "model.tokenizer_path=characters:0123456789+-*/="
WEIGHTS = """
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
torch.manual_seed(0)
config = AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)
AutoModelForCausalLM.from_config(config, trust_remote_code=True).save_pretrained(sys.argv[1])
"""
WHOLE_CONFIG = '''

class Qwen4Config(PreTrainedConfig):
    """What is around the text model."""

    model_type = "qwen4"
    sub_configs = {"text_config": Qwen4TextConfig}

    def __init__(self, *, text_config=None, tie_word_embeddings=True, **kwargs):
        given = text_config or {}
        self.text_config = Qwen4TextConfig(**given) if isinstance(given, dict) else given
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)
'''
WHOLE_MODEL = """

class Qwen4Whole(Qwen4PreTrainedModel):
    config_class = Qwen4Config

    def __init__(self, config):
        super().__init__(config)
        self.language_model = Qwen4Model(config.text_config)
        self.post_init()

    def get_input_embeddings(self):
        return self.language_model.embed_tokens

    def set_input_embeddings(self, value):
        self.language_model.embed_tokens = value

    def forward(self, input_ids, attention_mask=None, position_ids=None, **kwargs):
        return self.language_model(input_ids, attention_mask, position_ids)


class Qwen4ForConditionalGeneration(Qwen4PreTrainedModel, GenerationMixin):
    config_class = Qwen4Config
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.language_model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = Qwen4Whole(config)
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, value):
        self.lm_head = value

    def forward(self, input_ids, attention_mask=None, position_ids=None, **kwargs):
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids).last_hidden_state))
"""
OUTER = ("auto_map", "dtype", "transformers_version", "tie_word_embeddings")


def write(folder: Path, *, wrapped: bool) -> Path:
    """Write the folder of the model without weights."""
    shutil.copytree(QWEN4, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if wrapped:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        whole: dict[str, Any] = {name: config.pop(name) for name in OUTER}
        whole["auto_map"]["AutoModelForCausalLM"] = "modeling_qwen4.Qwen4ForConditionalGeneration"
        text = {**config, "model_type": "qwen4_text", "tie_word_embeddings": whole["tie_word_embeddings"]}
        whole |= {"model_type": "qwen4", "architectures": ["Qwen4ForConditionalGeneration"], "text_config": text}
        (folder / "config.json").write_text(json.dumps(whole, indent=2), encoding="utf-8")
        code = (folder / "configuration_qwen4.py").read_text(encoding="utf-8")
        code = code.replace("class Qwen4Config", "class Qwen4TextConfig").replace('= "qwen4"', '= "qwen4_text"')
        (folder / "configuration_qwen4.py").write_text(code + WHOLE_CONFIG, encoding="utf-8")
        code = (folder / "modeling_qwen4.py").read_text(encoding="utf-8")
        code = code.replace("import Qwen4Config", "import Qwen4Config, Qwen4TextConfig")
        code = code.replace("config_class = Qwen4Config", "config_class = Qwen4TextConfig")
        (folder / "modeling_qwen4.py").write_text(code + WHOLE_MODEL, encoding="utf-8")
    return folder


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_code_of_the_folder_is_found(tmp_path: Path, wrapped: bool) -> None:
    found = locate(str(write(tmp_path / "qwen4", wrapped=wrapped)), trust=True)
    assert found.model_type == "qwen4"
    assert {file.name for file in found.files} >= {"modeling_qwen4.py"}


def python(sandbox: Sandbox, *arguments: str) -> str:
    """Run code of the sandbox; returns stdout."""
    own = {"PYTHONPATH": str(sandbox.root), "HF_HUB_OFFLINE": "1", "HF_HOME": str(sandbox.root.parent / "hf")}
    environment = os.environ | own | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=sandbox.root, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped"])
def test_a_folder_becomes_a_family_whose_reward_rises(tmp_path: Path, wrapped: bool) -> None:
    sandbox, folder = Sandbox.copy_of(ROOT, tmp_path), str(write(tmp_path / "qwen4", wrapped=wrapped))
    python(sandbox, "-c", WEIGHTS, folder)
    model = ("-m", "areal_harness", "tooling.new", "model", "qwen4", "--from", folder, "--trust-source", "--json")
    checks = json.loads(python(sandbox, *model))["checks"]
    assert {"tests", "checkpoint"} <= {each["name"] for each in checks if each["ok"]}
    train = ("-m", "areal", "train")
    python(sandbox, *train, "examples/math/arithmetic_sft.yaml", f"model.path={folder}", TOKENIZER)
    python(sandbox, *train, "examples/math/arithmetic_sync.yaml", "total_train_steps=30")
    metrics = (sandbox.root / "runs/arithmetic/sync/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    lines = [json.loads(line) for line in metrics]
    scores = [line["eval/validation/avg@1"] for line in lines if "eval/validation/avg@1" in line]
    assert scores[-1] > scores[0] + 0.05, scores
    off = [abs(line["train/approx_kl"]) for line in lines if "train/approx_kl" in line]
    assert off[0] < 1e-6, "the trainer's log-probabilities are those of sampling"
