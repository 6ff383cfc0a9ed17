"""What source code says: fields that an architecture reads, and reports on code that must not run."""

import json
import shutil

from areal.porting.probe.source import config_reads, static_report
from areal.porting.probe.subject import resolve


def test_fields_are_found_with_file_and_line():
    reads = config_reads(resolve("gemma2"))
    assert {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "layer_types"} <= set(reads)
    file, line = reads["query_pre_attn_scalar"][0].split(":")
    text = next(path for path in resolve("gemma2").source_files if path.name == file).read_text(encoding="utf-8")
    assert "query_pre_attn_scalar" in text.splitlines()[int(line) - 1]


def test_library_code_that_the_model_uses_is_followed():
    reads = config_reads(resolve("llama"))
    assert any(place.startswith("modeling_rope_utils.py") for place in reads["rope_parameters"])
    assert "tie_word_embeddings" in reads


def test_classes_that_the_causal_model_does_not_use_are_left_out():
    assert "summary_type" not in config_reads(resolve("gpt2"))
    assert "classifier_dropout" not in config_reads(resolve("llama"))


def test_reads_through_getattr_are_found(tmp_path, novel):
    folder = shutil.copytree(novel("cirrus"), tmp_path / "cirrus")
    modeling = folder / "modeling_cirrus.py"
    text = modeling.read_text(encoding="utf-8").replace("config.score_cap", 'getattr(config, "score_cap", 30.0)')
    modeling.write_text(text, encoding="utf-8")
    assert "score_cap" in config_reads(resolve(str(folder), trust=True))


def test_reads_of_foreign_code_leave_out_what_it_ignores(novel):
    reads = config_reads(resolve(str(novel("borealis")), trust=True))
    assert {"expert_groups", "expert_groups_kept", "combine_scale", "global_every", "span"} <= set(reads)
    assert "max_positions" not in reads


def test_a_static_report_runs_nothing(tmp_path, novel):
    folder = shutil.copytree(novel("borealis"), tmp_path / "borealis")
    modeling = folder / "modeling_borealis.py"
    modeling.write_text(modeling.read_text(encoding="utf-8") + "\nraise SystemExit\n", encoding="utf-8")
    report = static_report(str(folder))
    assert json.loads(json.dumps(report)) == report
    assert {"BorealisForCausalLM", "Switch"} <= {row["name"] for row in report["classes"]}
    assert report["fields_read"]["expert_groups"]
    assert "max_positions" in report["fields_unread"]
    assert {"to_q", "balance", "members"} <= {row["name"] for row in report["parameters"]}
    assert {"router: sigmoid scores", "router: top-k selection"} <= {row["feature"] for row in report["hints"]}
    assert report["nearest"]
