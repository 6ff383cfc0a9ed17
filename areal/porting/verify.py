"""Tries to catch a registered model family being silently wrong; shares no code with the analysis that made it.

    python -m areal.porting.verify [MODEL_TYPE ...] [--tiny FILE.json] [--trials 24] [--seed 0] [--json]

For every registered `model_type` that the installed transformers knows: configs are perturbed field by field and
jointly, given random weights (drawn here), written by transformers, loaded by `areal.models.from_pretrained`, and
compared over packed documents of uneven lengths, one of them longer than every window. A config that areal refuses with
ModelError is counted as refused; one that it loads must give the logits of transformers. What areal writes back must
load in transformers with the same logits. Exit codes: 0 every config that was loaded is right; 1 anything was wrong or
crashed, or nothing of a type could be loaded at all; 2 wrong arguments, or a type that is not registered.

--tiny FILE.json: {"models": [{"model_type", "tiny_kwargs"}], "synthetic": [{"name", "base", "overrides"}]}; the
synthetic ones are checked by name. Types that are not in the file start from the config that the analysis makes up.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

RELATIVE_TOLERANCE: Final = 5e-5
LENGTHS: Final = (57, 1, 9, 30)
ROPE: Final = (
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 3.0,
        "original_max_position_embeddings": 24,
    },
    {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 5.0,
        "original_max_position_embeddings": 12,
        "beta_fast": 6,
        "beta_slow": 1,
    },
    {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
)
OUTCOMES: Final = ("equal", "refused", "impossible", "crashed", "wrong")
ACTIVATIONS: Final = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "quick_gelu")
SKIPPED: Final = frozenset(
    {"model_type", "architectures", "transformers_version", "dtype", "torch_dtype", "vocab_size", "use_cache"}
    | {"return_dict", "output_attentions", "output_hidden_states", "id2label", "label2id", "problem_type"}
    | {"bos_token_id", "eos_token_id", "pad_token_id", "is_encoder_decoder", "chunk_size_feed_forward"}
)


@dataclass(frozen=True)
class VerifiedConfig:
    """A type to check."""

    model_type: str
    base: dict[str, Any]
    """Keyword arguments of a tiny config."""
    named: dict[str, dict[str, Any]]
    """Changes to check besides those made up here."""


def alternatives(name: str, value: Any, chance: random.Random) -> list[Any]:
    """Return other values for a field, by its type only."""
    if "rope_parameters" in name and isinstance(value, dict):
        if any(isinstance(entry, dict) for entry in value.values()):
            return [{key: chance.choice(ROPE) for key in value}]
        partial = {key: value[key] for key in value if key == "partial_rotary_factor"}
        return [{**rope, **partial} for rope in ROPE]
    found: list[Any] = []
    if isinstance(value, bool):
        found = [not value]
    elif isinstance(value, int):
        found = [value * 2, value // 2, value + 1, 1]
    elif isinstance(value, float):
        found = [value * 1.7, value * 0.3, 1.0]
    elif isinstance(value, str) and value in ACTIVATIONS:
        found = list(ACTIVATIONS)
    elif isinstance(value, list) and len(value) > 1:
        found = [value[1:] + value[:1], [value[0]] * len(value), [value[-1]] * len(value), None]
    elif value is None:
        found = [4, 0.5, True, 24]
    return [other for number, other in enumerate(found) if other != value and other not in found[:number]]


def perturbed(
    base: dict[str, Any], named: dict[str, dict[str, Any]], trials: int, chance: random.Random
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the base config, the named changes, every field changed alone, `trials` joint changes of two to four
    fields."""
    yield "base", {}
    yield from named.items()
    single = [
        (name, value)
        for name in sorted(set(base) - SKIPPED)
        if not name.startswith("_")
        for value in alternatives(name, base[name], chance)
    ]
    for name, value in single:
        yield f"{name}={json.dumps(value)[:60]}", {name: value}
    for _ in range(trials if single else 0):
        picked = dict(chance.sample(single, k=min(len(single), chance.randint(2, 4))))
        yield " ".join(f"{name}={json.dumps(value)[:40]}" for name, value in picked.items()), picked


@torch.no_grad()
def randomize(model: nn.Module, seed: int) -> None:
    """Draw random weights on the scale of trained ones; 1-d parameters and learned buffers vary around what they
    were."""
    generator = torch.Generator().manual_seed(seed)
    persistent = set(model.state_dict())
    learned = ((n, b) for n, b in model.named_buffers() if n in persistent and is_learned(b))
    tensors = [*model.named_parameters(), *learned]
    for name, tensor in tensors:
        if not tensor.is_floating_point() or "inv_freq" in name:
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("A_log"):  # states that hardly decay, and states that are gone at the next token
            tensor.copy_((torch.rand(tensor.shape, generator=generator) * 7 - 4).to(tensor.dtype))
        elif name.endswith("recurrent_param"):
            tensor.copy_((torch.rand(tensor.shape, generator=generator) * 9 - 8).to(tensor.dtype))
        elif tensor.dim() < 2:
            tensor.add_((0.3 * noise).to(tensor.dtype))
        else:
            scale = 0.3 if "emb" in name or "wte" in name or "wpe" in name else 1.2 * tensor.shape[-1] ** -0.5
            tensor.copy_((scale * noise).to(tensor.dtype))


def is_learned(buffer: torch.Tensor) -> bool:
    """Return whether a stored buffer is a weight, which starts as one number everywhere, and no table."""
    return buffer.numel() == 1 or bool((buffer == buffer.flatten()[:1]).all())


MOST_IN_SINGLE, EXACT = 20.0, 0.1
"""A difference in float32 of up to so many tolerances is rounding where float64 shows no more than this part of one."""
DRAWS, OTHER_WEIGHTS = 3, 100_003
"""Weights that are judged where a tie decides, and the distance of their seeds: more than there are configs."""
UNSTABLE, MOST_ROUNDING = 0.3, 8.0
"""From this rounding of transformers, over the tolerance, on a config is unstable; that of ours may be so many times as
large then."""


class Refused(Exception):
    """transformers, or areal, does not take this config."""


def reference(model_type: str, overrides: dict[str, Any], seed: int) -> Any:
    """Return a transformers model of the config, with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.for_model(model_type, **copy.deepcopy(overrides))
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    except ValueError as error:
        if "attn_implementation" not in str(error) and "scaled_dot_product" not in str(error):
            raise Refused(str(error)) from error
        config = AutoConfig.for_model(model_type, **copy.deepcopy(overrides))
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    randomize(model, seed)
    return model.eval()


@torch.no_grad()
def expected_logits(model: Any, documents: list[torch.Tensor]) -> torch.Tensor:
    """Return each document alone, without padding and without a cache: [sum of lengths, vocab]."""
    model.config.use_cache = False  # some classes have no cache for layers that all keep a state
    return torch.cat([model(document[None]).logits[0] for document in documents])


@torch.no_grad()
def packed_logits(model: Any, documents: list[torch.Tensor]) -> torch.Tensor:
    """Return all documents in one packed forward."""
    lengths = torch.tensor([0, *(len(document) for document in documents)])
    positions = torch.cat([torch.arange(len(document)) for document in documents])
    bounds = lengths.cumsum(0).to(torch.int32)
    return model(torch.cat(documents), positions, bounds, int(lengths.max()))


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference over the tolerance; above 1 is wrong."""
    if not expected.isfinite().all():
        raise Refused("transformers gives no finite logits")
    error = (actual - expected).abs().max().item()
    return math.inf if math.isnan(error) else error / (RELATIVE_TOLERANCE * max(1.0, expected.std().item()))


def check(model_type: str, config: dict[str, Any], seed: int, *, draws: int = DRAWS) -> float:
    """Return the worst difference of loading and of writing back, over the tolerance. Raises Refused.

    Where float64 agrees and float32 does not at all, a router stood between two scores that are equal but for rounding,
    and chose another expert. Other weights have no such tie, so they are drawn and judged instead; a real difference
    shows with all weights. `draws`: how many weights may be judged.
    """
    from transformers import AutoModelForCausalLM

    from areal.api import ModelError
    from areal.models import from_pretrained

    chance = random.Random(seed)
    try:
        model = reference(model_type, config, seed)
        limit = int(model.get_input_embeddings().weight.shape[0])
        documents = [torch.tensor([chance.randrange(limit) for _ in range(length)]) for length in LENGTHS]
        expected = expected_logits(model, documents)
    except Refused:
        raise
    except Exception as error:  # transformers has many ways to dislike a config
        raise Refused(f"transformers: {type(error).__name__}: {error}") from error
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/theirs")
        try:
            ours = from_pretrained(f"{folder}/theirs").eval()
            actual = packed_logits(ours, documents)
        except ModelError as error:
            raise Refused(f"areal: {error}") from error
        worst = difference(actual, expected)
        ours.save_pretrained(f"{folder}/ours")
        again = AutoModelForCausalLM.from_pretrained(f"{folder}/ours", dtype=torch.float32).eval()
        worst = max(worst, difference(expected_logits(again, documents), expected))
    if worst > 1 and (exact := in_double(model, ours, documents)) <= EXACT:
        if worst <= MOST_IN_SINGLE:
            return exact
        if draws > 1:
            return check(model_type, config, seed + OTHER_WEIGHTS, draws=draws - 1)
    if worst > 1:
        rounding = _rounding(model, documents, expected)
        if is_rounding(worst, rounding):
            raise Refused(f"transformers' own rounding is {rounding:.1f} times the tolerance")
    return worst


class _Double(TorchFunctionMode):
    """Lets code that asks for float32 compute in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        swap = {torch.float32: torch.float64}
        given = [swap.get(each, each) if isinstance(each, torch.dtype) else each for each in args]
        named = {
            name: swap.get(each, each) if isinstance(each, torch.dtype) else each
            for name, each in (kwargs or {}).items()
        }
        return func(*given, **named)


def in_double(model: Any, ours: Any, documents: list[torch.Tensor]) -> float:
    """Return the largest difference over the tolerance where both compute in float64; infinite where one cannot."""
    theirs = copy.deepcopy(model)
    if getattr(theirs, "_can_set_experts_implementation", bool)():
        theirs.set_experts_implementation("eager")  # grouped kernels are for single precision only
    try:
        with _Double():
            expected = torch.cat([exact_logits(theirs.double(), document) for document in documents])
        return difference(packed_logits(copy.deepcopy(ours).double(), documents), expected)
    except (RuntimeError, TypeError):
        return math.inf


@torch.no_grad()
def exact_logits(model: Any, document: torch.Tensor) -> torch.Tensor:
    model.config.use_cache = False
    found: torch.Tensor = model(document[None]).logits[0]
    return found


def is_rounding(worst: float, rounding: float) -> bool:
    """Return whether a difference is what rounding in another order makes of an unstable config. What differs by more
    than that is wrong, however unstable it is."""
    return rounding > UNSTABLE and worst <= MOST_ROUNDING * rounding


def _rounding(model: Any, documents: list[torch.Tensor], expected: torch.Tensor) -> float:
    """Return how far the logits are from those in double precision, over the tolerance; 0 where these cannot be
    computed."""
    if getattr(model, "_can_set_experts_implementation", bool)():
        model.set_experts_implementation("eager")  # grouped kernels are for single precision only
    try:
        return difference(expected_logits(model.double(), documents).to(expected.dtype), expected)
    except RuntimeError:  # not every kernel of torch knows double precision
        return 0.0


def verify(subject: VerifiedConfig, *, trials: int, seed: int) -> dict[str, Any]:
    """Return counts, every named config's outcome, and every config that was wrong, crashed or was refused."""
    from transformers import AutoConfig

    model_type, base = subject.model_type, subject.base
    chance = random.Random(f"{model_type} {seed}")
    full = AutoConfig.for_model(model_type, **copy.deepcopy(base)).to_dict()
    full = {name: value for name, value in full.items() if name in base or name not in SKIPPED}
    counts: Counter[str] = Counter()
    wrong, crashes, refusals = [], [], []
    named: dict[str, float | str] = {}
    for number, (label, overrides) in enumerate(perturbed(full, subject.named, trials, chance)):
        try:
            ratio = check(model_type, {**base, **overrides}, seed + number)
        except Refused as error:
            by_areal = str(error).startswith("areal: ")
            if label in subject.named:
                named[label] = str(error)
            counts["refused" if by_areal else "impossible"] += 1
            if by_areal:
                refusals.append({"config": label, "reason": str(error)[7:247]})
            continue
        except Exception as error:  # noqa: BLE001 - a crash of ours is a finding, not the end of the run
            counts["crashed"] += 1
            crashes.append({"config": label, "reason": f"{type(error).__name__}: {str(error)[:240]}"})
            continue
        counts["equal" if ratio <= 1 else "wrong"] += 1
        if label == "base" or label in subject.named:
            named[label] = ratio
        if ratio > 1:
            wrong.append({"config": label, "overrides": overrides, "error_over_tolerance": ratio})
    return {
        "model_type": model_type,
        **counts,
        "named": named,
        "wrong_configs": wrong,
        "crashes": crashes,
        "refusals": refusals,
    }


class ArgumentsError(Exception):
    """There is nothing to verify: a type that is not registered, a file that is not a list of configs."""


def subjects(wanted: list[str], tiny: Path | None) -> list[VerifiedConfig]:
    """Return what to check: the wanted types, or every registered one that transformers knows. Raises
    ArgumentsError."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from areal.models.registry import MODELS
    from areal.porting.probe.subject import resolve
    from areal.porting.probe.tiny import tiny_config

    for model_type in wanted:
        known = model_type in CONFIG_MAPPING
        if model_type not in MODELS and not (known and CONFIG_MAPPING[model_type].model_type in MODELS):
            raise ArgumentsError(f"{model_type!r} is not registered; registered are {', '.join(sorted(MODELS))}")
        if not known:
            raise ArgumentsError(f"the installed transformers has no {model_type!r} to compare with")
    data = _given(tiny)
    given = {entry["model_type"]: entry["tiny_kwargs"] for entry in data.get("models", ())}
    found = []
    for model_type in wanted or [name for name in MODELS if name in CONFIG_MAPPING]:
        kwargs = given.get(model_type) or tiny_config(resolve(model_type))
        base = {name: value for name, value in kwargs.items() if name != "model_type"}
        synthetic = (entry for entry in data.get("synthetic", ()) if entry["base"] == model_type)
        found.append(VerifiedConfig(model_type, base, {entry["name"]: entry["overrides"] for entry in synthetic}))
    return found


def _given(tiny: Path | None) -> dict[str, Any]:
    """Return the content of --tiny. Raises ArgumentsError where it is not what the module says."""
    if tiny is None:
        return {}
    try:
        data = json.loads(tiny.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentsError(f"{tiny} of --tiny cannot be read as JSON: {error}") from error
    needed = {"models": {"model_type", "tiny_kwargs"}, "synthetic": {"name", "base", "overrides"}}
    if not isinstance(data, dict):
        raise ArgumentsError(f"{tiny} of --tiny holds a {type(data).__name__} instead of an object")
    for name, keys in needed.items():
        entries = data.get(name, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) and keys <= {*entry} for entry in entries):
            raise ArgumentsError(f"{name} in {tiny} of --tiny is not a list of objects with {', '.join(sorted(keys))}")
    return data


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m areal.porting.verify", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model_types", nargs="*", metavar="MODEL_TYPE")
    parser.add_argument("--tiny", type=Path, metavar="FILE.json")
    parser.add_argument("--trials", type=int, default=24, help="joint changes per type (default 24)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object per type")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    failed = False
    try:
        chosen = subjects(arguments.model_types, arguments.tiny)
    except ArgumentsError as error:
        parser.error(str(error))
    for subject in chosen:
        result = verify(subject, trials=arguments.trials, seed=arguments.seed)
        failed |= bool(result["wrong_configs"] or result["crashes"] or not result.get("equal"))
        if arguments.json:
            sys.stdout.write(json.dumps(result) + "\n")
        else:
            counted = ", ".join(f"{result.get(name, 0)} {name}" for name in OUTCOMES)
            sys.stdout.write(f"{subject.model_type}: {counted}\n")
            for entry in result["crashes"]:
                sys.stdout.write(f"  CRASH {entry['config']}: {entry['reason']}\n")
            for entry in result["wrong_configs"]:
                sys.stdout.write(f"  WRONG {entry['config']}: {entry['error_over_tolerance']:.1f} x tolerance\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
