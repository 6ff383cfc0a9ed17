"""Write the model card of a run: base model, data, settings, course of training, and evaluation as the hub reads it."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

import areal
from areal.api import UsageError
from areal.hub.names import HubName, find_name
from areal.infra.metrics import names
from areal.infra.metrics.logger import METRICS_FILE, read_metrics, series

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_SCORE: Final = re.compile(r"eval/(?P<set>[\w.-]+)/(?P<metric>(?:avg|pass|maj)@\d+)")
_SECRET: Final = re.compile(r"(?i)token$|secret|password|api_key|credential")
_LOCAL: Final = (
    "output_dir",
    "matrix_products",
    "num_threads",
    "metrics",
    "checkpoint",
    "supervisor",
    "servers",
    "vllm",
    "sglang",
    "weights",
)
"""Settings of the machine and not of the model."""
_COURSE: Final = {
    names.REWARD_MEAN: "reward",
    names.LOSS: "loss",
    names.EVAL_LOSS: "evaluation loss",
    names.ACCURACY: "accuracy on pairs",
    names.ENTROPY: "entropy",
    names.KL: "KL",
    names.LENGTH_MEAN: "answer length",
}
_PIPELINES: Final = {"reward_model": "text-classification"}


def build_card(run: Path, name: HubName, *, step: int) -> str:
    """Return README.md of the model after `step` steps of the run in `run`, to be published as `name`.

    Raises UsageError when the directory has no configuration.
    """
    import yaml

    try:
        config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{run} has no readable config.yaml: {error}", where=str(run), fix="name the directory of a run"
        ) from error
    file = run / METRICS_FILE
    steps = {at: values for at, values in (read_metrics(file) if file.is_file() else {}).items() if at <= step}
    results = evaluation_results(config, steps)
    head = yaml.safe_dump(_front_matter(config, name, results), sort_keys=False, allow_unicode=True)
    base = _shown((config.get("model") or {}).get("path") or "")
    kept = {key: value for key, value in config.items() if key not in _LOCAL}
    method = _method(config)
    body = [
        f"# {name.repo.partition('/')[2]}",
        "",
        f"{base or 'A new model'} after {step} steps of {method}, trained with areal {areal.__version__}.",
        "",
        *_use(config, name),
        "## Evaluation",
        "",
        *_evaluation(results),
        "## Training data",
        "",
        *_data(run, config),
        "## Course of training",
        "",
        *_course(steps),
        "## Configuration",
        "",
        "```yaml",
        yaml.safe_dump(_public(kept), sort_keys=False, allow_unicode=True).rstrip(),
        "```",
    ]
    return f"---\n{head}---\n\n" + "\n".join(body) + "\n"


def evaluation_results(config: Mapping[str, Any], steps: Mapping[int, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return the newest value of each score of each evaluation set: set, dataset, split, metric, value, step."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for step in sorted(steps):
        for key, value in steps[step].items():
            match = _SCORE.fullmatch(key)
            if match is None or not math.isfinite(value):
                continue
            dataset = ((config.get("eval_sets") or {}).get(match["set"]) or {}).get("dataset") or {}
            found[match["set"], match["metric"]] = {
                "set": match["set"],
                "dataset": _shown(dataset.get("path") or dataset.get("name") or match["set"]),
                "split": dataset.get("split", "train"),
                "metric": match["metric"],
                "value": round(value, 6),
                "step": step,
            }
    return [found[key] for key in sorted(found)]


def _front_matter(config: Mapping[str, Any], name: HubName, results: list[dict[str, Any]]) -> dict[str, Any]:
    kind = config.get("kind", "")
    pipeline = _PIPELINES.get(kind, "text-generation")
    head: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": pipeline,
        "tags": ["areal", kind, *([config["objective"]["preset"]] if kind == "rl" and config.get("objective") else [])],
    }
    base = find_name((config.get("model") or {}).get("path") or "")
    if base is not None:
        head["base_model"] = base.repo
    hub_data = {hub.repo for _, data in _datasets(config) if (hub := find_name(data.get("path") or "")) is not None}
    if hub_data:
        head["datasets"] = sorted(hub_data)
    if results:
        head["model-index"] = [
            {
                "name": name.repo.partition("/")[2],
                "results": [
                    {
                        "task": {"type": pipeline},
                        "dataset": {"name": one["set"], "type": one["dataset"], "split": one["split"]},
                        "metrics": [{"type": one["metric"], "name": one["metric"], "value": one["value"]}],
                    }
                    for one in results
                ],
            }
        ]
    return head


def _use(config: Mapping[str, Any], name: HubName) -> list[str]:
    revision = "" if name.revision == "main" else f', revision="{name.revision}"'
    loader = "AutoModelForSequenceClassification" if config.get("kind") == "reward_model" else "AutoModelForCausalLM"
    return [
        "## Use",
        "",
        "```python",
        f"from transformers import {loader}, AutoTokenizer",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{name.repo}"{revision})',
        f'model = {loader}.from_pretrained("{name.repo}"{revision})',
        "```",
        "",
    ]


def _evaluation(results: list[dict[str, Any]]) -> Iterator[str]:
    if not results:
        yield from ("The run had no evaluation sets.", "")
        return
    yield from ("| set | dataset | metric | value | after step |", "| --- | --- | --- | --- | --- |")
    for one in results:
        data = f"{one['dataset']} ({one['split']})"
        yield f"| {one['set']} | {data} | {one['metric']} | {one['value']:.4g} | {one['step']} |"
    yield ""


def _data(run: Path, config: Mapping[str, Any]) -> Iterator[str]:
    yield from ("| use | loader | source | split |", "| --- | --- | --- | --- |")
    for use, data in _datasets(config):
        source = _shown(data.get("path") or "") or "packaged rows"
        yield f"| {use} | {data.get('name', '')} | {source} | {data.get('split', '')} |"
    if fingerprint := _fingerprint(run):
        yield from ("", f"Fingerprint of the training rows: `{fingerprint}`.")
    yield ""


def _course(steps: Mapping[int, Mapping[str, float]]) -> Iterator[str]:
    rows = []
    for metric, label in _COURSE.items():
        points = [(at, value) for at, value in series(steps, metric) if math.isfinite(value)]
        if len(points) > 1:
            places = [points[round(share * (len(points) - 1) / 4)] for share in range(5)]
            rows.append(f"| {label} | " + " | ".join(f"{value:.4g}" for _, value in places) + " |")
    if not rows:
        yield from ("No metrics were kept.", "")
        return
    yield from ("| metric | first | quarter | half | three quarters | last |", "| --- | --- | --- | --- | --- | --- |")
    yield from (*rows, "")


def _datasets(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "training", config.get("train_dataset") or {}
    if valid := config.get("valid_dataset"):
        yield "validation", valid
    for name, chosen in (config.get("eval_sets") or {}).items():
        yield f"evaluation ({name})", chosen.get("dataset") or {}


def _fingerprint(run: Path) -> str:
    """Of the rows, as the newest checkpoint has it."""
    for manifest in sorted((run / "checkpoints").glob("*/manifest.json"), reverse=True):
        try:
            rows = json.loads(manifest.read_bytes())["meta"]["rows"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(rows, str):
            return rows
    return ""


def _method(config: Mapping[str, Any]) -> str:
    kind = str(config.get("kind", ""))
    if kind == "rl":
        return f"reinforcement learning ({(config.get('objective') or {}).get('preset', '')})"
    return {"sft": "supervised fine-tuning", "dpo": "preference training", "reward_model": "reward modelling"}.get(
        kind, kind
    )


def _shown(path: str) -> str:
    """Return a hub name as it is, and of a local path the last part alone: other folders are private."""
    return path if not path or find_name(path) is not None else path.rstrip("/").rpartition("/")[2]


def _public(value: Any) -> Any:
    """Return settings without secrets and folders."""
    if isinstance(value, dict):
        return {
            key: "(not shown)" if _SECRET.search(str(key)) and item else _public(item) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_public(item) for item in value]
    return _shown(value) if isinstance(value, str) and value.startswith(("/", "~", "./", "../")) else value
