"""Mixers with a state are those of transformers, document by document, and their parameters start sensibly."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from areal.api import ModelError
from areal.models.blocks.attention import PackedAttention
from areal.models.blocks.gated_delta import GatedDelta
from areal.models.blocks.lightning import LightningAttention
from areal.models.blocks.mamba1 import Mamba1
from areal.models.blocks.mamba2 import Mamba2
from areal.models.blocks.norms import GatedNorm
from areal.models.blocks.packed_backend import PackedBackend
from areal.models.blocks.rg_lru import RGLRU
from areal.models.loading import initialize

CPU = torch.device("cpu")
HIDDEN = 24
ARGS = SimpleNamespace(hidden_size=HIDDEN)
# Shorter than the chunks of 64 that the reference has, longer than two of ours.
BOUNDS = [0, 1, 4, 20, 60]
PARAMETERS = ("weight", "bias")


def packed(bounds):
    return PackedBackend(torch.tensor(bounds, dtype=torch.int32), bounds[-1], CPU)


def randomise(module, seed=0):
    """Decays from nearly 0 to nearly 1: initial values hide mistakes of order."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in module.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("A_log"):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * 7 - 4)
        elif name.endswith("recurrent_param"):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * 9 - 8)
        elif name.endswith("norm.weight"):
            tensor.copy_(1 + 0.3 * noise)
        else:
            tensor.copy_(noise * (0.4 if tensor.dim() == 1 or "conv" in name else tensor.shape[-1] ** -0.5))


def qwen3_next():
    from transformers.models.qwen3_next import modeling_qwen3_next as library
    from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig

    config = Qwen3NextConfig(
        hidden_size=HIDDEN,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=6,
        linear_value_head_dim=5,
        linear_conv_kernel_dim=4,
        rms_norm_eps=2e-3,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    theirs = library.Qwen3NextGatedDeltaNet(config, 0)
    randomise(theirs)
    state = theirs.state_dict()
    # Per key head: query, key, then values and gates of two value heads.
    q, k, v, z = state["in_proj_qkvz.weight"].unflatten(0, (2, -1)).split([6, 6, 10, 10], 1)
    rate, decay = state["in_proj_ba.weight"].unflatten(0, (2, -1)).split([2, 2], 1)
    convs = state["conv1d.weight"].squeeze(1).split([12, 12, 20])
    named = {"q_proj": q, "k_proj": k, "v_proj": v, "gate_proj": z, "rate_proj": rate, "decay_proj": decay}
    ours = GatedDelta(
        0, ARGS, num_key_heads=2, num_value_heads=4, key_dim=6, value_dim=5, kernel_size=4, norm_eps=2e-3, chunk=16
    )
    ours.load_state_dict(
        {f"{name}.weight": tensor.flatten(0, 1) for name, tensor in named.items()}
        | {f"{name}.weight": tensor for name, tensor in zip(("q_conv", "k_conv", "v_conv"), convs, strict=True)}
        | {name: state[name] for name in ("A_log", "dt_bias", "norm.weight")}
        | {"o_proj.weight": state["out_proj.weight"]}
    )
    return theirs, ours


def olmo_hybrid():
    from transformers.models.olmo_hybrid import modeling_olmo_hybrid as library
    from transformers.models.olmo_hybrid.configuration_olmo_hybrid import OlmoHybridConfig

    config = OlmoHybridConfig(
        hidden_size=HIDDEN,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=6,
        linear_value_head_dim=12,
        linear_conv_kernel_dim=4,
        linear_allow_neg_eigval=True,
        rms_norm_eps=2e-3,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
    )
    theirs = library.OlmoHybridGatedDeltaNet(config, 0)
    randomise(theirs)
    state = dict(theirs.state_dict())
    convs = state.pop("conv1d.weight").squeeze(1).split([12, 12, 24])
    renamed = {"a_proj": "decay_proj", "b_proj": "rate_proj", "g_proj": "gate_proj", "o_norm": "norm"}
    ours = GatedDelta(
        0,
        ARGS,
        num_key_heads=2,
        num_value_heads=2,
        key_dim=6,
        value_dim=12,
        kernel_size=4,
        norm_eps=1e-5,
        max_rate=2.0,
        chunk=16,
    )
    ours.load_state_dict(
        {
            name.replace(part, renamed.get(part, part)): tensor
            for name, tensor in state.items()
            for part in [name.partition(".")[0]]
        }
        | {f"{name}.weight": tensor for name, tensor in zip(("q_conv", "k_conv", "v_conv"), convs, strict=True)}
    )
    return theirs, ours


def kimi_linear():
    from transformers.models.kimi_linear import modeling_kimi_linear as library
    from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig

    config = KimiLinearConfig(
        hidden_size=HIDDEN,
        linear_num_heads=3,
        linear_head_dim=6,
        linear_conv_kernel_dim=4,
        rms_norm_eps=2e-3,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    theirs = library.KimiLinearDeltaAttention(config, 0)
    randomise(theirs)
    state = dict(theirs.state_dict())
    convs = state.pop("conv1d.weight").squeeze(1).split([18, 18, 18])
    state["A_log"] = state.pop("forget_gate.A_log").flatten()
    state["dt_bias"] = state.pop("forget_gate.dt_bias")
    renamed = {
        "forget_gate.f_a_proj": "decay_down",
        "forget_gate.f_b_proj": "decay_proj",
        "b_proj": "rate_proj",
        "g_a_proj": "gate_down",
        "g_b_proj": "gate_proj",
        "o_norm": "norm",
    }
    ours = GatedDelta(
        0,
        ARGS,
        num_key_heads=3,
        num_value_heads=3,
        key_dim=6,
        value_dim=6,
        kernel_size=4,
        norm_eps=2e-3,
        by_channel=True,
        decay_rank=6,
        gate_rank=6,
        gate="sigmoid",
    )
    changed = {}
    for name, tensor in state.items():
        module, _, last = name.rpartition(".")
        changed[f"{renamed.get(module, module)}.{last}" if module else name] = tensor
    convolutions = {
        f"{name}.weight": tensor for name, tensor in zip(("q_conv", "k_conv", "v_conv"), convs, strict=True)
    }
    ours.load_state_dict(changed | convolutions)
    return theirs, ours


def bailing_hybrid(**changes):
    from transformers.models.bailing_hybrid import modeling_bailing_hybrid as library
    from transformers.models.bailing_hybrid.configuration_bailing_hybrid import BailingHybridConfig

    config = BailingHybridConfig(
        hidden_size=HIDDEN,
        num_attention_heads=3,
        head_dim=6,
        short_conv_kernel_size=4,
        rms_norm_eps=2e-3,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        kda_lower_bound=-5.0,
        **changes,
    )
    theirs = library.BailingHybridDeltaAttention(config, 0)
    randomise(theirs)
    state = dict(theirs.state_dict())
    convs = state.pop("conv1d.weight").squeeze(1).split([18, 18, 18])
    renamed = {"forget_gate.f_proj": "decay_proj", "forget_gate": "", "b_proj": "rate_proj"}
    renamed |= {"g_proj": "gate_proj", "o_norm": "norm"}
    ours = GatedDelta(
        0,
        ARGS,
        num_key_heads=3,
        num_value_heads=3,
        key_dim=6,
        value_dim=6,
        kernel_size=4,
        norm_eps=2e-3,
        by_channel=True,
        decay_floor=-5.0 if config.kda_safe_gate else None,
        gate="sigmoid",
    )
    changed = {}
    for name, tensor in state.items():
        module, _, last = name.rpartition(".")
        changed[f"{renamed.get(module, module)}.{last}".removeprefix(".")] = tensor
    ours.load_state_dict(changed | {f"{part}_conv.weight": each for part, each in zip("qkv", convs, strict=True)})
    return theirs, ours


def bamba(**changes):
    from transformers.models.bamba import modeling_bamba as library
    from transformers.models.bamba.configuration_bamba import BambaConfig

    config = BambaConfig(
        hidden_size=HIDDEN,
        mamba_n_heads=4,
        mamba_d_head=12,
        mamba_expand=2,
        mamba_n_groups=2,
        mamba_d_state=7,
        mamba_d_conv=4,
        mamba_chunk_size=8,
        mamba_conv_bias=True,
        mamba_proj_bias=True,
        rms_norm_eps=2e-3,
        num_hidden_layers=1,
        **changes,
    )
    theirs = library.BambaMixer(config, 0)
    limits = changes.get("time_step_limit", (0.0, float("inf")))
    return theirs, mamba2_of(theirs, norm_eps=2e-3, step_limits=limits)


def falcon_h1(**changes):
    from transformers.models.falcon_h1 import modeling_falcon_h1 as library
    from transformers.models.falcon_h1.configuration_falcon_h1 import FalconH1Config

    factors = (0.7, 1.3, 0.4, 0.8, 1.6)
    config = FalconH1Config(
        hidden_size=HIDDEN,
        mamba_n_heads=4,
        mamba_d_head=12,
        mamba_d_ssm=48,
        mamba_n_groups=2,
        mamba_d_state=7,
        mamba_d_conv=4,
        mamba_chunk_size=8,
        mamba_conv_bias=True,
        mamba_proj_bias=True,
        projectors_bias=True,
        rms_norm_eps=2e-3,
        ssm_multipliers=list(factors),
        num_hidden_layers=1,
        **changes,
    )
    theirs = library.FalconH1Mixer(config, 0)
    theirs.register_buffer("mup_vector", library.compute_mup_vector(config), persistent=False)
    eps = 2e-3 if config.mamba_rms_norm else None
    return theirs, mamba2_of(theirs, norm_eps=eps, norm_first=config.mamba_norm_before_gate, multipliers=factors)


def mamba2_of(theirs, **options):
    """4 heads of 12, in 2 groups, with states of 7."""
    randomise(theirs)
    state = theirs.state_dict()
    sizes = {"num_heads": 4, "head_dim": 12, "num_groups": 2, "state_size": 7, "kernel_size": 4}
    ours = Mamba2(0, ARGS, **sizes, bias=True, chunk=16, **options)
    split = {}
    for kind in ("weight", "bias"):
        names = ("z_proj", "x_proj", "b_proj", "c_proj", "dt_proj")
        parts = state[f"in_proj.{kind}"].split([48, 48, 14, 14, 4])
        split |= {f"{name}.{kind}": part for name, part in zip(names, parts, strict=True)}
        filters = state[f"conv1d.{kind}"].split([48, 14, 14])
        filters = [part.squeeze(1) if kind == "weight" else part for part in filters]
        split |= {f"{name}.{kind}": part for name, part in zip(("x_conv", "b_conv", "c_conv"), filters, strict=True)}
        split[f"o_proj.{kind}"] = state[f"out_proj.{kind}"]
    ours.load_state_dict(
        split | {name: state[name] for name in ("A_log", "dt_bias", "D", "norm.weight") if name in state}
    )
    return ours


def minimax():
    from transformers.models.minimax import modeling_minimax as library
    from transformers.models.minimax.configuration_minimax import MiniMaxConfig

    kinds = ["linear_attention"] * 3
    config = MiniMaxConfig(
        hidden_size=HIDDEN, num_attention_heads=4, head_dim=6, block_size=8, num_hidden_layers=3, layer_types=kinds
    )
    theirs = library.MiniMaxLightningAttention(config, 1)
    tables = {name: buffer.clone() for name, buffer in theirs.named_buffers()}
    randomise(theirs)
    theirs.load_state_dict(tables, strict=False)
    state = dict(theirs.state_dict())
    parts = state.pop("qkv_proj.weight").unflatten(0, (4, 3, 6))
    ours = LightningAttention(1, ARGS, num_heads=4, head_dim=6, num_layers=3, table_size=8, norm_eps=1e-6, chunk=16)
    renamed = {"output_gate.weight": "gate_proj.weight", "out_proj.weight": "o_proj.weight"}
    ours.load_state_dict(
        {renamed.get(name, name): tensor for name, tensor in state.items()}
        | {f"{part}_proj.weight": parts[:, place].flatten(0, 1) for place, part in enumerate("qkv")}
    )
    return lambda hidden: theirs(hidden, None, None)[0], ours


def mamba(**changes):
    from transformers.models.mamba import modeling_mamba as library
    from transformers.models.mamba.configuration_mamba import MambaConfig

    sizes = {"state_size": 7, "conv_kernel": 4, "time_step_rank": 5, "use_bias": True, "layer_norm_epsilon": 2e-3}
    theirs = library.MambaMixer(MambaConfig(hidden_size=HIDDEN, expand=2, num_hidden_layers=1, **sizes | changes), 0)
    return theirs, mamba1_of(theirs, bias=True)


def falcon_mamba():
    from transformers.models.falcon_mamba import modeling_falcon_mamba as library
    from transformers.models.falcon_mamba.configuration_falcon_mamba import FalconMambaConfig

    sizes = {"state_size": 7, "conv_kernel": 4, "time_step_rank": 5, "mixer_rms_eps": 2e-3, "use_conv_bias": False}
    config = FalconMambaConfig(hidden_size=HIDDEN, expand=2, num_hidden_layers=1, **sizes)
    theirs = library.FalconMambaMixer(config, 0, initialize_mixer_weights=False)
    return theirs, mamba1_of(theirs, norm_eps=2e-3, conv_bias=False)


def jamba():
    from transformers.models.jamba import modeling_jamba as library
    from transformers.models.jamba.configuration_jamba import JambaConfig

    sizes = {"mamba_d_state": 7, "mamba_d_conv": 4, "mamba_dt_rank": 5, "mamba_expand": 2, "rms_norm_eps": 2e-3}
    theirs = library.JambaMambaMixer(JambaConfig(hidden_size=HIDDEN, num_hidden_layers=1, **sizes), 0)
    return theirs, mamba1_of(theirs, norm_eps=2e-3, norm_weights=True)


def mamba1_of(theirs, **options):
    """48 channels, states of 7, steps made of 5."""
    randomise(theirs)
    state = dict(theirs.state_dict())
    ours = Mamba1(0, ARGS, inner_size=48, state_size=7, step_rank=5, kernel_size=4, chunk=16, **options)
    split = {name: state.pop(name) for name in ("A_log", "D")}
    split |= {"conv.weight": state.pop("conv1d.weight").squeeze(1), "dt_bias": state.pop("dt_proj.bias")}
    for kind in ("weight", "bias"):
        if f"in_proj.{kind}" in state:
            split[f"x_proj.{kind}"], split[f"z_proj.{kind}"] = state.pop(f"in_proj.{kind}").chunk(2)
    parts = state.pop("x_proj.weight").split([5, 7, 7])
    split |= {f"{name}_proj.weight": part for name, part in zip(("step", "b", "c"), parts, strict=True)}
    renamed = {"conv1d": "conv", "out_proj": "o_proj", "dt_layernorm": "step_norm"}
    renamed |= {f"{part}_layernorm": f"{part}_norm" for part in "bc"}
    for name, tensor in state.items():
        module, _, last = name.rpartition(".")
        split[f"{renamed.get(module, module)}.{last}"] = tensor
    ours.load_state_dict(split)
    return ours


def recurrent_gemma():
    from transformers.models.recurrent_gemma import modeling_recurrent_gemma as library
    from transformers.models.recurrent_gemma.configuration_recurrent_gemma import RecurrentGemmaConfig

    config = RecurrentGemmaConfig(
        hidden_size=HIDDEN, lru_width=32, num_attention_heads=4, conv1d_width=4, num_hidden_layers=1
    )
    theirs = library.RecurrentGemmaRecurrentBlock(config, 0)
    randomise(theirs)
    ours = RGLRU(0, ARGS, width=32, num_blocks=4, kernel_size=4, activation="gelu_pytorch_tanh", chunk=16)
    names = {"linear_y": "gate_proj", "linear_x": "x_proj", "linear_out": "o_proj", "conv_1d": "conv"}
    gates = {"input_gate": "input_gate", "recurrent_gate": "decay_gate"}
    names |= {f"rg_lru.{theirs}_{part}": f"{name}.{part}" for theirs, name in gates.items() for part in PARAMETERS}
    names["rg_lru.recurrent_param"] = "decay"
    renamed = {}
    for name, tensor in theirs.state_dict().items():
        owner, _, part = name.rpartition(".")
        renamed[names[name] if name in names else f"{names[owner]}.{part}"] = tensor
    renamed["conv.weight"] = renamed["conv.weight"].squeeze(1)
    ours.load_state_dict(renamed)

    def alone(hidden):
        # With a cache its modules keep states from call to call.
        return theirs(hidden, torch.arange(hidden.shape[1])[None], None, use_cache=False)[0]

    return alone, ours


MIXERS = {
    "qwen3_next": qwen3_next,
    "olmo_hybrid": olmo_hybrid,
    "kimi_linear": kimi_linear,
    "bailing_hybrid": bailing_hybrid,
    "bailing_hybrid without a floor": lambda: bailing_hybrid(kda_safe_gate=False),
    "mamba": mamba,
    "falcon_mamba": falcon_mamba,
    "jamba": jamba,
    "bamba": bamba,
    "falcon_h1": falcon_h1,
    "falcon_h1, normed and gated": lambda: falcon_h1(mamba_rms_norm=True),
    "falcon_h1, gated and normed": lambda: falcon_h1(mamba_rms_norm=True, mamba_norm_before_gate=False),
    "minimax": minimax,
    "recurrent_gemma": recurrent_gemma,
    "bamba with limits": lambda: bamba(time_step_limit=(0.1, 0.6)),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_every_document_gets_what_the_module_of_transformers_gives_it_alone(name):
    theirs, ours = MIXERS[name]()
    hidden = torch.randn(60, HIDDEN, generator=torch.Generator().manual_seed(1))
    expected = torch.cat([theirs(hidden[None, start:end])[0] for start, end in itertools.pairwise(BOUNDS)])
    found = ours(hidden, None, packed(BOUNDS))
    assert float((found - expected).abs().max() / expected.std()) < 1e-5
    without_borders = ours(hidden, None, packed([0, 60]))
    assert float((without_borders - expected).abs().max() / expected.std()) > 0.3


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_bfloat16_is_as_near_as_its_rounding(name):
    _, ours = MIXERS[name]()
    hidden = torch.randn(60, HIDDEN, generator=torch.Generator().manual_seed(1))
    exact = ours(hidden, None, packed(BOUNDS))
    narrow = ours.bfloat16()(hidden.bfloat16(), None, packed(BOUNDS))
    assert narrow.dtype == torch.bfloat16
    assert float((narrow.float() - exact).square().mean().sqrt() / exact.std()) < 2e-2


@torch.no_grad()
def test_decays_that_ling_rounds_to_bfloat16_are_within_what_bfloat16_costs():
    theirs, ours = bailing_hybrid()
    hidden = torch.randn(40, HIDDEN, generator=torch.Generator().manual_seed(1))
    exact = theirs(hidden[None])[0]
    hidden = hidden.bfloat16()
    rounded = theirs.bfloat16()(hidden[None])[0].float()
    found = ours.bfloat16()(hidden, None, packed([0, 40])).float()
    # Theirs rounds log decays, ours does not: both are off by as much, and by no more than that from each other.
    off = [float((each - exact).square().mean().sqrt() / exact.std()) for each in (rounded, found)]
    between = float((rounded - found).square().mean().sqrt() / exact.std())
    assert max(*off, between) < 2e-2


def test_a_floor_bounds_the_decay_of_ling():
    ours = GatedDelta(
        0,
        ARGS,
        num_key_heads=2,
        num_value_heads=2,
        key_dim=4,
        value_dim=4,
        kernel_size=2,
        norm_eps=1e-6,
        by_channel=True,
        decay_floor=-5.0,
    )
    randomise(ours)
    hidden = torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(1))
    seen = []
    backend = packed([0, 9])
    scan = backend.scan
    backend.scan = lambda layer, rule: seen.append(rule) or scan(layer, rule)
    ours(hidden, None, backend)
    raw = (ours.decay_proj(hidden) + ours.dt_bias).unflatten(-1, (2, 4))
    torch.testing.assert_close(seen[0].log_decay, -5.0 * torch.sigmoid(ours.A_log.exp()[:, None] * raw))


def test_the_order_of_gate_and_norm_and_its_groups():
    inputs = torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gate = torch.randn(3, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def normed(values, groups):
        parts = values.unflatten(-1, (groups, -1))
        return (parts / (parts.square().mean(-1, keepdim=True) + 1e-3).sqrt()).flatten(-2)

    silu = torch.nn.functional.silu(gate)
    before = GatedNorm(8, 1e-3, norm_first=True, groups=2)(inputs, gate)
    after = GatedNorm(8, 1e-3, norm_first=False, groups=4)(inputs, gate)
    sigmoid = GatedNorm(8, 1e-3, norm_first=True, activation="sigmoid")(inputs, gate)
    torch.testing.assert_close(before, normed(inputs, 2) * silu)
    torch.testing.assert_close(after, normed(inputs * silu, 4))
    torch.testing.assert_close(sigmoid, normed(inputs, 1) * gate.sigmoid())


def test_tables_of_other_slopes_are_refused():
    _, ours = minimax()
    ours.key_decay += 0.1
    with pytest.raises(ModelError, match=r"key_decay is not that of 4 heads in layer 1 of 3"):
        ours(torch.randn(60, HIDDEN), None, packed(BOUNDS))


def test_without_a_norm_only_the_gate_is_left():
    options = {"num_heads": 2, "head_dim": 3, "num_groups": 1, "state_size": 4, "kernel_size": 2}
    plain = Mamba2(0, ARGS, norm_eps=None, **options)
    initialize(plain, std=0.4, seed=0)
    normed = Mamba2(0, ARGS, norm_eps=1e-6, **options)
    normed.load_state_dict({**plain.state_dict(), "norm.weight": torch.ones(6)})
    seen = []
    for mixer in (plain, normed):
        mixer.o_proj.register_forward_hook(lambda _, given, __: seen.append(given[0]))
        mixer(torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1)), None, packed([0, 5]))
    torch.testing.assert_close(seen[1], seen[0] / (seen[0].square().mean(-1, keepdim=True) + 1e-6).sqrt())


def test_channels_start_with_steps_and_rates_of_published_models():
    mixer = Mamba1(0, ARGS, inner_size=64, state_size=4, step_rank=2, kernel_size=4, norm_eps=1e-6, norm_weights=True)
    initialize(mixer, std=0.02, seed=0)
    steps = torch.nn.functional.softplus(mixer.dt_bias)
    assert 1 <= mixer.A_log.exp().min() < mixer.A_log.exp().max() <= 16
    assert 0.0009 < steps.min() < steps.max() < 0.11
    assert all((ones == 1).all() for ones in (mixer.D, mixer.step_norm.weight, mixer.b_norm.weight))
    with pytest.raises(ModelError, match="norm_weights of norms without an epsilon"):
        Mamba1(0, ARGS, inner_size=4, state_size=4, step_rank=2, kernel_size=4, norm_weights=True)


def test_parameters_start_with_steps_and_rates_of_published_models():
    mixer = Mamba2(0, ARGS, num_heads=64, head_dim=2, num_groups=2, state_size=4, kernel_size=4, norm_eps=1e-6)
    initialize(mixer, std=0.02, seed=0)
    steps = torch.nn.functional.softplus(mixer.dt_bias)
    assert 1 <= mixer.A_log.exp().min() < mixer.A_log.exp().max() <= 16
    assert 0.0009 < steps.min() < steps.max() < 0.11
    assert all((ones == 1).all() for ones in (mixer.D, mixer.norm.weight))
    assert not mixer.x_conv.bias.any()


def test_open_gates_keep_what_those_of_published_models_keep():
    mixer = RGLRU(0, ARGS, width=64, num_blocks=2, kernel_size=4, activation="gelu")
    initialize(mixer, std=0.02, seed=0)
    kept = torch.exp(-torch.nn.functional.softplus(mixer.decay))
    assert 0.9 < kept.min() < kept.max() < 0.9991
    assert not any(each.bias.any() for each in (mixer.input_gate, mixer.decay_gate, mixer.conv))
    with pytest.raises(ModelError, match="64 channels are not 3 blocks of one size"):
        RGLRU(0, ARGS, width=64, num_blocks=3, kernel_size=4, activation="gelu")


@pytest.mark.exhaustive
def test_gradients_of_gates_and_decays_pass_gradcheck():
    mixer = RGLRU(0, SimpleNamespace(hidden_size=3), width=4, num_blocks=2, kernel_size=2, activation="silu", chunk=2)
    initialize(mixer, std=0.4, seed=0)
    mixer.double()
    hidden = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    names, parameters = zip(*mixer.named_parameters(), strict=True)

    def run(hidden, *parameters):
        given = (hidden, None, packed([0, 2, 5]))
        return torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), given)

    assert torch.autograd.gradcheck(run, (hidden, *parameters))


def test_gradients_stay_finite_where_nothing_decays():
    mixer = RGLRU(0, ARGS, width=8, num_blocks=2, kernel_size=2, activation="gelu")
    initialize(mixer, std=0.4, seed=0)
    with torch.no_grad():
        mixer.decay.fill_(-60.0)  # a decay of exactly 1, and an input of 0: its root has no derivative
    mixer(torch.randn(9, HIDDEN), None, packed([0, 4, 9])).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_value_heads": 3}, "2 key heads cannot serve 3 value heads"),
        ({"decay_floor": 0.5}, "floor of log decays is 0.5"),
        ({"conv_activation": "unheard of"}, "activation 'unheard of' is not implemented"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change, message):
    sizes = {"num_key_heads": 2, "num_value_heads": 4, "key_dim": 4, "value_dim": 4, "kernel_size": 4, "norm_eps": 1e-6}
    with pytest.raises(ModelError, match=message):
        GatedDelta(0, ARGS, **(sizes | change))


def test_groups_that_do_not_fit_are_refused():
    with pytest.raises(ModelError, match="3 groups cannot serve 4 heads"):
        Mamba2(0, ARGS, num_heads=4, head_dim=2, num_groups=3, state_size=4, kernel_size=4, norm_eps=1e-6)
    with pytest.raises(ModelError, match="8 elements are not 3 equal groups"):
        GatedNorm(8, 1e-6, norm_first=True, groups=3)


def test_a_backend_that_only_attends_is_refused():
    mixer = Mamba2(3, ARGS, num_heads=2, head_dim=2, num_groups=1, state_size=4, kernel_size=4, norm_eps=1e-6)
    with pytest.raises(ModelError, match="layer 3 has a state, which PackedAttention cannot carry"):
        mixer(torch.zeros(2, HIDDEN), None, PackedAttention(torch.tensor([0, 2]), 2, CPU))
