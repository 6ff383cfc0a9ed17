"""Writes the config class of a design, and how the modeling code reads each field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.areal.porting.unknown.design import Design

NAMES: Final[dict[str, tuple[str, str, str]]] = {
    "vocabulary": ("vocab_size", "n_tokens", "vocabulary"),
    "width": ("hidden_size", "d_model", "channels"),
    "depth": ("num_hidden_layers", "n_layer", "blocks"),
    "heads": ("num_attention_heads", "n_head", "query_heads"),
    "keys": ("num_key_value_heads", "n_kv_head", "key_heads"),
    "head": ("head_dim", "d_head", "channels_per_head"),
    "inner": ("intermediate_size", "d_inner", "mlp_width"),
    "eps": ("rms_norm_eps", "norm_epsilon", "small"),
    "theta": ("rope_theta", "rotary_base", "wavelength"),
    "local_theta": ("rope_local_base_freq", "rotary_base_local", "short_wavelength"),
    "fraction": ("partial_rotary_factor", "rotary_pct", "turned_part"),
    "stretch": ("rope_stretch", "rotary_scale", "slowness"),
    "context": ("max_position_embeddings", "n_ctx", "longest"),
    "window": ("sliding_window", "local_window", "reach"),
    "kinds": ("layer_types", "block_kinds", "sight"),
    "every": ("full_attention_interval", "global_every", "far_each"),
    "unturned": ("no_rope_interval", "nope_every", "plain_each"),
    "score": ("query_pre_attn_scalar", "attn_scale_dim", "score_size"),
    "experts": ("num_experts", "n_expert", "specialists"),
    "chosen": ("num_experts_per_tok", "n_active_expert", "specialists_asked"),
    "expert_inner": ("moe_intermediate_size", "d_expert", "specialist_width"),
    "dense": ("first_k_dense_replace", "n_dense_layer", "plain_blocks"),
    "embedding_factor": ("embedding_multiplier", "emb_mult", "loudness"),
    "residual_factor": ("residual_multiplier", "branch_mult", "damping"),
    "cap": ("final_logit_softcapping", "logit_cap", "ceiling"),
    "divisor": ("logits_scaling", "mup_divisor", "coolness"),
}
"""Role of a field to its name, by `Design.fields`."""
VALUES: Final[dict[str, Any]] = {
    "vocabulary": 160,
    "width": 96,
    "depth": 3,
    "heads": 6,
    "keys": 2,
    "head": 16,
    "inner": 136,
    "eps": 1e-5,
    "theta": 10000.0,
    "local_theta": 500.0,
    "fraction": 0.5,
    "stretch": 4.0,
    "context": 512,
    "window": 32,
    "every": 2,
    "unturned": 3,
    "score": 20.0,
    "experts": 8,
    "chosen": 2,
    "expert_inner": 56,
    "dense": 1,
    "embedding_factor": 7.0,
    "residual_factor": 0.3,
    "cap": 12.0,
    "divisor": 3.0,
}
INNER: Final = {"heads": "attn_config", "keys": "attn_config", "theta": "rope", "fraction": "rope", "stretch": "rope"}
"""Roles of fields that stand in an object, where a design has one."""
_STANDARD: Final = ("vocabulary", "width", "depth", "heads", "keys")


class Fields:
    """The fields of a design's config: their names and values, and how code reads them."""

    def __init__(self, design: Design, roles: list[str]) -> None:
        column = ("usual", "own", "odd").index(design.fields)
        self.design = design
        self.names = {role: NAMES[role][column] for role in roles}
        if design.config == "mapped" and design.fields == "usual":
            self.names |= {role: NAMES[role][1] for role in roles if role in _STANDARD}
        self.values = {role: design.values.get(role, VALUES.get(role)) for role in roles}
        if "kinds" in roles:
            kinds = ("far", "near") if design.fields == "odd" else ("full_attention", "sliding_attention")
            depth = int(self.values["depth"])
            self.values["kinds"] = [kinds[(layer + 1) % 2] for layer in range(depth)]
        if "head" in roles:
            self.values["head"] = design.values.get("head", 16)
        if "keys" in roles and design.projection == "per_group":
            self.values["heads"] = max(self.values["heads"], 2 * self.values["keys"])

    def read(self, role: str) -> str:
        """Return the expression that reads a field of `config`."""
        name, inner = self.names[role], self._object(role)
        if inner:
            return f'config.{inner}["{name}"]'
        if self.design.config == "mapped" and role in ("heads", "depth"):
            return f"config.{NAMES[role][0]}"
        return f"config.{name}"

    def _object(self, role: str) -> str:
        return INNER.get(role, "") if self.design.config == "nested" else ""

    @property
    def plain(self) -> dict[str, Any]:
        """Fields that stand in the config itself, by name."""
        return {self.names[role]: value for role, value in self.values.items() if not self._object(role)}

    def json(self) -> dict[str, Any]:
        """Return the fields as config.json has them."""
        found = dict(self.plain)
        for role, value in self.values.items():
            if self._object(role):
                found.setdefault(self._object(role), {})[self.names[role]] = value
        if self.design.config in ("property", "derived"):
            found.pop(self.names["head"], None)
        return found

    # --------------------------------------------------------------------------------------------------------- class

    def source(self, title: str, model_type: str) -> str:
        """Return the config class."""
        lines = [f"class {title}Config({'PretrainedConfig' if self.design.older else 'PreTrainedConfig'}):"]
        lines += [f'    model_type = "{model_type}"', '    keys_to_ignore_at_inference = ["past_key_values"]']
        if self.design.config == "mapped":
            mapped = {NAMES[role][0]: self.names[role] for role in _STANDARD if NAMES[role][0] != self.names[role]}
            lines.append(f"    attribute_map = {mapped!r}")
        lines += getattr(self, f"_{self.design.config}")()
        return "\n".join(lines) + "\n"

    def _defaults(self) -> dict[str, Any]:
        """Return other sizes than config.json has: those of a published model."""
        large = {"vocabulary": 32000, "width": 2048, "depth": 24, "inner": 5504, "context": 4096, "window": 1024}
        large |= {"heads": 16, "keys": 4, "head": 128, "expert_inner": 1408, "experts": 64, "chosen": 6}
        return {role: large.get(role, value) for role, value in self.values.items()}

    def _tied(self) -> str:
        return f"tie_word_embeddings={self.design.tied}"

    def _signature(self) -> list[str]:
        defaults = {**self._defaults(), **({"kinds": None} if "kinds" in self.names else {})}
        lines = ["", "    def __init__(", "        self,"]
        lines += [f"        {self.names[role]}={value!r}," for role, value in defaults.items()]
        lines += [f"        {self._tied()},", "        **kwargs,", "    ):"]
        for role in defaults:
            name = self.names[role]
            lines.append(f"        self.{name} = {self._kinds() if role == 'kinds' else name}")
        return [*lines, "        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)"]

    def _kinds(self) -> str:
        depth, name = self.names["depth"], self.names["kinds"]
        kinds = tuple(dict.fromkeys(self.values["kinds"]))
        return f"{name} or [{kinds[0]!r} if layer % 2 == 0 else {kinds[-1]!r} for layer in range({depth})]"

    _mapped = _signature

    def _keywords(self) -> list[str]:
        lines = ["", "    def __init__(self, **kwargs):"]
        for role, value in self._defaults().items():
            default = None if role == "kinds" else value
            lines.append(f"        self.{self.names[role]} = kwargs.pop({self.names[role]!r}, {default!r})")
        if "kinds" in self.names:
            depth = self.names["depth"]
            lines.append(f"        {self.names['kinds']}, {depth} = self.{self.names['kinds']}, self.{depth}")
            lines.append(f"        self.{self.names['kinds']} = {self._kinds()}")
        lines.append(f'        kwargs.setdefault("tie_word_embeddings", {self.design.tied})')
        return [*lines, "        super().__init__(**kwargs)"]

    def _locals(self) -> list[str]:
        lines = self._signature()
        start = next(number for number, line in enumerate(lines) if line.startswith("        self."))
        body = ["        values = dict(locals())"]
        body += ['        for name in ("self", "kwargs", "__class__", "tie_word_embeddings"):']
        body += ["            values.pop(name, None)", "        for name, value in values.items():"]
        body += ["            setattr(self, name, value)"]
        if "kinds" in self.names:
            body.append(f"        self.{self.names['kinds']} = {self._kinds()}")
        return [*lines[:start], *body, lines[-1]]

    def _nested(self) -> list[str]:
        defaults, objects = self._defaults(), {}
        for role, value in defaults.items():
            if self._object(role):
                objects.setdefault(self._object(role), {})[self.names[role]] = value
        lines = ["", "    def __init__(", "        self,"]
        plain = {role: value for role, value in defaults.items() if not self._object(role)}
        lines += [
            f"        {self.names[role]}={None if role == 'kinds' else value!r}," for role, value in plain.items()
        ]
        lines += [f"        {name}=None," for name in objects]
        lines += [f"        {self._tied()},", "        **kwargs,", "    ):"]
        for role in plain:
            name = self.names[role]
            lines.append(f"        self.{name} = {self._kinds() if role == 'kinds' else name}")
        for name, content in objects.items():
            lines.append(f"        self.{name} = {{**{content!r}, **({name} or {{}})}}")
        return [*lines, "        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)"]

    def _without_head(self) -> list[str]:
        lines = self._signature()
        name = self.names["head"]
        return [line for line in lines if not line.startswith((f"        {name}=", f"        self.{name} ="))]

    def _property(self) -> list[str]:
        size = f"self.{self.names['width']} // self.{self.names['heads']}"
        body = ["", "    @property", f"    def {self.names['head']}(self):", f"        return {size}"]
        return [*self._without_head(), *body]

    def _derived(self) -> list[str]:
        lines = self._signature()
        head, keys = self.names["head"], self.names["keys"]
        width, heads = self.names["width"], self.names["heads"]
        made = {
            f"        {head}=": f"        {head}=None,",
            f"        {keys}=": f"        {keys}=None,",
            f"        self.{head} =": f"        self.{head} = {head} if {head} is not None else {width} // {heads}",
            f"        self.{keys} =": f"        self.{keys} = {heads} if {keys} is None else {keys}",
        }
        return [next((text for start, text in made.items() if line.startswith(start)), line) for line in lines]

    def _annotated(self) -> list[str]:
        kinds = {int: "int", float: "float", bool: "bool"}
        lines = []
        for role, value in self._defaults().items():
            if role == "kinds":
                lines.append(f"    {self.names[role]}: list[str] | None = None")
            else:
                lines.append(f"    {self.names[role]}: {kinds[type(value)]} = {value!r}")
        lines.append(f"    tie_word_embeddings: bool = {self.design.tied}")
        if "kinds" in self.names:
            name, depth = self.names["kinds"], self.names["depth"]
            lines += [
                "",
                "    def __post_init__(self, **kwargs):",
                f"        {name}, {depth} = self.{name}, self.{depth}",
            ]
            lines += [f"        self.{name} = {self._kinds()}", "        super().__post_init__(**kwargs)"]
        return lines


def as_text(content: dict[str, Any]) -> str:
    """Return JSON as checkpoints have it."""
    return json.dumps(content, indent=2) + "\n"
