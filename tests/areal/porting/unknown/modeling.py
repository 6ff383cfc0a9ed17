"""Writes the modeling code of a design, and the whole folder as a checkpoint with weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.areal.porting.unknown.configs import Fields, as_text

if TYPE_CHECKING:
    from pathlib import Path

    from tests.areal.porting.unknown.design import Design

MODULES: Final[dict[str, tuple[str, str, str]]] = {
    "body": ("model", "transformer", "net"),
    "embedding": ("embed_tokens", "wte", "lookup"),
    "positions": ("embed_positions", "wpe", "places"),
    "layers": ("layers", "h", "tower"),
    "attention": ("self_attn", "attn", "mixing"),
    "feed_forward": ("mlp", "ffn", "thinking"),
    "norm1": ("input_layernorm", "ln_1", "calm_a"),
    "norm2": ("post_attention_layernorm", "ln_2", "calm_b"),
    "norm3": ("pre_feedforward_layernorm", "ln_3", "calm_c"),
    "norm4": ("post_feedforward_layernorm", "ln_4", "calm_d"),
    "last": ("norm", "ln_f", "calm"),
    "head": ("lm_head", "lm_head", "speech"),
    "q": ("q_proj", "wq", "ask"),
    "k": ("k_proj", "wk", "offer"),
    "v": ("v_proj", "wv", "carry"),
    "o": ("o_proj", "wo", "merge"),
    "qkv": ("qkv_proj", "Wqkv", "triple"),
    "gate": ("gate_proj", "w1", "sluice"),
    "up": ("up_proj", "w3", "rise"),
    "down": ("down_proj", "w2", "fall"),
    "both": ("gate_up_proj", "w12", "sluice_rise"),
    "router": ("gate", "router", "switch"),
    "experts": ("experts", "experts", "members"),
    "shared": ("shared_expert", "shared", "everyone"),
}
"""Part of a model to the name of its module, by `Design.names`."""


def roles_of(design: Design) -> list[str]:
    """Return the roles of the config fields that the code reads."""
    roles = ["vocabulary", "width", "depth", "heads", "keys", "head", "inner", "eps"]
    roles += {"learned": [], "alibi": []}.get(design.rotation, ["theta"])
    roles += {"partial": ["fraction"], "two_bases": ["local_theta"], "some_layers": ["unturned"]}.get(
        design.rotation, []
    )
    roles += ["stretch"] if design.rotation == "scaled" else []
    roles += ["context"]
    roles += {"all": ["window"], "list": ["window", "kinds"], "every": ["window", "every"]}.get(design.window, [])
    if design.rotation == "two_bases" and "kinds" not in roles:
        roles += ["kinds"]
    roles += ["score"] if design.scale == "field" else []
    if design.feed_forward == "experts":
        roles += ["experts", "chosen", "expert_inner"] + (["dense"] if design.dense_first else [])
    for name in ("embedding_factor", "residual_factor"):
        roles += [name] if getattr(design, name) else []
    return roles + (["cap"] if design.logit_cap else []) + (["divisor"] if design.logit_divisor else [])


class Writer:
    """Writes the parts of one design."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.title = design.name.capitalize()
        self.fields = Fields(design, roles_of(design))
        column = ("model", "transformer", "net").index(design.names)
        self.module = {part: names[column] for part, names in MODULES.items()}

    def config(self, role: str) -> str:
        """Return how code reads a field."""
        return self.fields.read(role)

    # ---------------------------------------------------------------------------------------------------------- norms

    def norms(self) -> str:
        """Return the class of norms."""
        kind = self.design.norm
        if kind.startswith("layer"):
            bias = "" if kind == "layer" else ", bias=False"
            return f"""
class {self.title}Norm(nn.LayerNorm):
    def __init__(self, size, eps):
        super().__init__(size, eps=eps{bias})
"""
        start, scale = ("zeros", "1.0 + self.weight.float()") if kind == "rms_plus_one" else ("ones", "self.weight")
        return f"""
class {self.title}Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.{start}(size))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (({scale}) * y).to(x.dtype)
"""

    # ------------------------------------------------------------------------------------------------------- rotation

    def rotation(self) -> str:
        """Return the functions that make and apply the rotation."""
        kind = self.design.rotation
        if kind in ("learned", "alibi"):
            return ""
        size = {
            "partial": f"int({self.config('head')} * {self.config('fraction')})"
            if kind == "partial"
            else self.config("head")
        }.get(kind, self.config("head"))
        places = f"positions.float() / {self.config('stretch')}" if kind == "scaled" else "positions.float()"
        base = self.config("theta")
        table = f"""
def angles_of(config, positions, base):
    size = {size}
    inverse = 1.0 / (base ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size))
    return torch.outer({places}, inverse.to(positions.device))
"""
        applied = {
            "pairs": """
def turn(x, angles):
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
""",
            "complex": """
def turn(x, angles):
    spun = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    spun = spun * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(spun).flatten(-2).type_as(x)
""",
        }.get(
            kind,
            """
def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def turn(x, angles):
    angles = torch.cat((angles, angles), dim=-1)
    part, rest = x[..., : angles.shape[-1]], x[..., angles.shape[-1] :]
    return torch.cat((part * angles.cos() + rotate_half(part) * angles.sin(), rest), dim=-1)
""",
        )
        self.base = base
        return table + "\n" + applied

    # ------------------------------------------------------------------------------------------------------ attention

    def attention(self) -> str:
        """Return the attention module."""
        d, m, c = self.design, self.module, self.config
        make, split = self._projections()
        extra, body = self._extras()
        window = self._window()
        turned = self._turned()
        gate = {
            "none": "",
            "channels": "        mixed = mixed * torch.sigmoid(self.valve(x))\n",
            "heads": "        opened = torch.sigmoid(self.valve(x))[..., None]\n"
            "        mixed = (mixed.view(batch, length, self.heads, -1) * opened).flatten(2)\n",
        }[d.gate]
        if d.gate != "none":
            size = f"{c('heads')} * {c('head')}" if d.gate == "channels" else c("heads")
            extra += f"        self.valve = nn.Linear({c('width')}, {size}, bias=False)\n"
        scale = {
            "root": "self.size ** -0.5",
            "field": f"{c('score')} ** -0.5" if d.scale == "field" else "",
            "inverse": "1.0 / self.size",
        }[d.scale]
        mask = "        mask = (place[:, None] >= place[None, :])\n"
        if d.poison == "not_causal":
            mask = "        mask = torch.ones(length, length, dtype=torch.bool, device=x.device)\n"
        if window:
            mask += (
                "        if self.window is not None:\n"
                "            mask = mask & (place[:, None] - place[None, :] < self.window)\n"
            )
        return f"""
class {self.title}Attention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.heads = {c("heads")}
        self.keys = {c("keys")}
        self.size = {c("head")}
        self.num_key_value_groups = self.heads // self.keys
        self.is_causal = True
        self.scaling = {scale}
{make}{extra}{window}
    def forward(self, x, place):
        batch, length, _ = x.shape
{split}{body}{turned}{mask}{self._mixing()}
        mixed = mixed.transpose(1, 2).reshape(batch, length, -1)
{gate}        return self.{m["o"]}(mixed)
"""

    def _projections(self) -> tuple[str, str]:
        d, m, c = self.design, self.module, self.config
        h, width, bias = "        ", c("width"), d.bias
        sizes = "(self.heads + 2 * self.keys) * self.size"
        out = f"{h}self.{m['o']} = nn.Linear(self.heads * self.size, {width}, bias={bias})\n"
        view = ".view(batch, length, -1, self.size).transpose(1, 2)"
        if d.projection == "separate":
            made = "".join(
                f"{h}self.{m[part]} = nn.Linear({width}, self.{count} * self.size, bias={bias})\n"
                for part, count in (("q", "heads"), ("k", "keys"), ("v", "keys"))
            )
            split = "".join(
                f"{h}{name} = self.{m[part]}(x){view}\n"
                for part, name in (("q", "query"), ("k", "key"), ("v", "value"))
            )
            return made + out, split
        made = f"{h}self.{m['qkv']} = nn.Linear({width}, {sizes}, bias={bias})\n"
        if d.projection == "transposed":
            made = f"{h}self.{m['qkv']} = Conv1D({sizes}, {width})\n"
            out = f"{h}self.{m['o']} = Conv1D({width}, self.heads * self.size)\n"
        if d.projection == "per_group":
            split = (
                f"{h}joined = self.{m['qkv']}(x).view(batch, length, self.keys, -1, self.size)\n"
                f"{h}query = joined[:, :, :, :-2].reshape(batch, length, self.heads, self.size).transpose(1, 2)\n"
                f"{h}key, value = joined[:, :, :, -2].transpose(1, 2), joined[:, :, :, -1].transpose(1, 2)\n"
            )
        else:
            split = (
                f"{h}sizes = [self.heads * self.size, self.keys * self.size, self.keys * self.size]\n"
                f"{h}query, key, value = self.{m['qkv']}(x).split(sizes, dim=-1)\n"
                + "".join(f"{h}{name} = {name}{view}\n" for name in ("query", "key", "value"))
            )
        return made + out, split

    def _extras(self) -> tuple[str, str]:
        """Return what head norms and poisons add to the constructor and to the forward."""
        d, c, h = self.design, self.config, "        "
        made, body = "", ""
        if d.head_norm == "head":
            made += f"{h}self.q_norm = {self.title}Norm(self.size, {c('eps')})\n"
            made += f"{h}self.k_norm = {self.title}Norm(self.size, {c('eps')})\n"
            body += f"{h}query, key = self.q_norm(query), self.k_norm(key)\n"
        if d.head_norm == "width":
            made += f"{h}self.q_norm = {self.title}Norm(self.heads * self.size, {c('eps')})\n"
            made += f"{h}self.k_norm = {self.title}Norm(self.keys * self.size, {c('eps')})\n"
            for name, norm in (("query", "q_norm"), ("key", "k_norm")):
                body += (
                    f"{h}{name} = self.{norm}({name}.transpose(1, 2).flatten(2))"
                    ".view(batch, length, -1, self.size).transpose(1, 2)\n"
                )
        return made, body

    def _window(self) -> str:
        d, c, h = self.design, self.config, "        "
        if d.window == "none":
            return ""
        near = {
            "all": "True",
            "list": f"{c('kinds')}[layer_idx] == {self._near()!r}" if d.window == "list" else "",
            "every": f"(layer_idx + 1) % {c('every')} != 0" if d.window == "every" else "",
        }[d.window]
        return f"{h}self.window = {c('window')} if {near} else None\n"

    def _near(self) -> str:
        return "near" if self.design.fields == "odd" else "sliding_attention"

    def _turned(self) -> str:
        d, c, h = self.design, self.config, "        "
        if d.rotation in ("learned", "alibi"):
            return ""
        base = c("theta")
        if d.rotation == "two_bases":
            base = f"({c('local_theta')} if {c('kinds')}[self.layer_idx] == {self._near()!r} else {base})"
            base = base.replace("config.", "self.config.")
        else:
            base = base.replace("config.", "self.config.")
        lines = f"angles = angles_of(self.config, place, {base})\n"
        lines += f"{h}query, key = turn(query, angles), turn(key, angles)\n"
        if d.rotation == "some_layers":
            unturned = c("unturned").replace("config.", "self.config.")
            indented = lines.replace(f"\n{h}", f"\n{h}    ")
            return f"{h}if (self.layer_idx + 1) % {unturned} != 0:\n{h}    {indented}"
        return h + lines

    def _mixing(self) -> str:
        d, h = self.design, "        "
        scale = "self.scaling"
        text = ""
        if d.poison == "length":
            scale = "(self.scaling * (1.0 + math.log(length) / 8))"
        if d.rotation == "alibi":
            text += f"{h}steps = [2.0 ** (-8.0 * (head + 1) / self.heads) for head in range(self.heads)]\n"
            text += f"{h}slopes = torch.tensor(steps)\n"
            text += f"{h}bias = slopes.view(-1, 1, 1) * (place[None, None, :] - place[None, :, None])\n"
            text += f"{h}bias = bias.masked_fill(~mask, -1e9)\n"
        else:
            text += f"{h}bias = torch.zeros(length, length).masked_fill(~mask, -1e9)\n"
        repeated = (
            f"{h}key = key.repeat_interleave(self.num_key_value_groups, dim=1)\n"
            f"{h}value = value.repeat_interleave(self.num_key_value_groups, dim=1)\n"
        )
        if d.attention == "registry" and not d.poison:
            return text + (
                f"{h}attend = eager_attention\n"
                f'{h}if self.config._attn_implementation != "eager":\n'
                f"{h}    attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]\n"
                f"{h}mixed, _ = attend(\n"
                f"{h}    self, query, key, value,\n"
                f"{h}    bias.expand(batch, -1, -1, -1) if bias.ndim == 3 else bias[None, None],\n"
                f"{h}    dropout=0.0, scaling=self.scaling,\n"
                f"{h})\n{h}mixed = mixed.transpose(1, 2)"
            )
        if d.attention == "sdpa" and not d.poison:
            return (
                text
                + repeated
                + (
                    f"{h}mixed = nn.functional.scaled_dot_product_attention(\n"
                    f"{h}    query, key, value, attn_mask=bias.to(query.dtype), scale=self.scaling\n{h})"
                )
            )
        text += repeated + f"{h}scores = query @ key.transpose(2, 3) * {scale} + bias\n"
        if d.poison == "talking_heads":
            text += f"{h}scores = torch.einsum('bhqk,hg->bgqk', scores.clamp(min=-1e4), self.talk) + bias\n"
        return text + f"{h}mixed = scores.float().softmax(dim=-1).to(query.dtype) @ value"

    # --------------------------------------------------------------------------------------------------- feed-forward

    def feed_forward(self) -> str:
        """Return the feed-forward modules."""
        d, m, c = self.design, self.module, self.config
        kind = "gated" if d.feed_forward == "experts" else d.feed_forward
        act = "sin" if d.poison == "sine" else "silu"
        call = f"torch.{act}" if act == "sin" else f"nn.functional.{act}"
        bias = d.bias
        made, text = {
            "gated": (("gate", "up"), f"{call}(self.{m['gate']}(x)) * self.{m['up']}(x)"),
            "fused": (("both",), f"up * {call}(gate)"),
            "plain": (("up",), f"{'torch.sin' if act == 'sin' else 'nn.functional.gelu'}(self.{m['up']}(x))"),
            "squared": (("up",), f"{'torch.sin' if act == 'sin' else 'torch.relu'}(self.{m['up']}(x)).square()"),
        }[kind]
        lines = "".join(
            f"        self.{m[part]} = nn.Linear({c('width')}, {'2 * ' if part == 'both' else ''}inner, bias={bias})\n"
            for part in made
        )
        split = f"        gate, up = self.{m['both']}(x).chunk(2, dim=-1)\n" if kind == "fused" else ""
        dense = f"""
class {self.title}FeedForward(nn.Module):
    def __init__(self, config, inner):
        super().__init__()
{lines}        self.{m["down"]} = nn.Linear(inner, {c("width")}, bias={bias})

    def forward(self, x):
{split}        return self.{m["down"]}({text})
"""
        return dense + (self._experts() if d.feed_forward == "experts" else "")

    def _experts(self) -> str:
        d, m, c, h = self.design, self.module, self.config, "        "
        scores = {
            "softmax": f"{h}weights, chosen = logits.softmax(dim=-1).topk(self.chosen, dim=-1)\n"
            f"{h}weights = weights / weights.sum(dim=-1, keepdim=True)\n",
            "softmax_after": f"{h}weights, chosen = logits.topk(self.chosen, dim=-1)\n"
            f"{h}weights = weights.softmax(dim=-1)\n",
            "sigmoid_bias": f"{h}scores = logits.sigmoid()\n"
            f"{h}chosen = (scores + self.correction).topk(self.chosen, dim=-1).indices\n"
            f"{h}weights = scores.gather(-1, chosen)\n",
            "sigmoid_sum": f"{h}weights, chosen = logits.sigmoid().topk(self.chosen, dim=-1)\n"
            f"{h}weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)\n",
        }[d.router]
        if d.poison == "hash_routing":
            scores = (
                f"{h}chosen = (torch.arange(flat.shape[0])[:, None] * 7 + torch.arange(self.chosen)) % self.count\n"
                f"{h}weights = torch.full(chosen.shape, 1.0 / self.chosen)\n"
            )
        made = f"{h}self.{m['router']} = nn.Linear({c('width')}, self.count, bias=False)\n"
        if d.router == "sigmoid_bias":
            made += f"{h}self.correction = nn.Parameter(torch.zeros(self.count))\n"
        if d.experts == "stacked":
            made += f"{h}self.w_in = nn.Parameter(torch.zeros(self.count, 2 * {c('expert_inner')}, {c('width')}))\n"
            made += f"{h}self.w_out = nn.Parameter(torch.zeros(self.count, {c('width')}, {c('expert_inner')}))\n"
            each = (
                f"{h}    gate, up = nn.functional.linear(flat[rows], self.w_in[number]).chunk(2, dim=-1)\n"
                f"{h}    found = nn.functional.linear(nn.functional.silu(gate) * up, self.w_out[number])\n"
            )
        else:
            made += (
                f"{h}self.{m['experts']} = nn.ModuleList(\n"
                f"{h}    {self.title}FeedForward(config, {c('expert_inner')}) for _ in range(self.count)\n{h})\n"
            )
            each = f"{h}    found = self.{m['experts']}[number](flat[rows])\n"
        shared = ""
        if d.shared_expert:
            made += f"{h}self.{m['shared']} = {self.title}FeedForward(config, {c('expert_inner')})\n"
            shared = f" + self.{m['shared']}(x)"
        return f"""

class {self.title}Experts(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.count = {c("experts")}
        self.chosen = {c("chosen")}
{made}
    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        logits = self.{m["router"]}(flat).float()
{scores}        mixed = torch.zeros_like(flat)
        for number in range(self.count):
            rows, places = torch.where(chosen == number)
            if rows.numel() == 0:
                continue
{each}            mixed.index_add_(0, rows, found * weights[rows, places, None].to(found.dtype))
        return mixed.view(x.shape){shared}
"""

    # ---------------------------------------------------------------------------------------------------------- block

    def block(self) -> str:
        """Return the layer."""
        d, m, c, h = self.design, self.module, self.config, "        "
        norm = f"{self.title}Norm({c('width')}, {c('eps')})"
        used = {"pre": 2, "post": 2, "sandwich": 4, "parallel": 1}[d.norms]
        norms = "".join(f"{h}self.{m[f'norm{number}']} = {norm}\n" for number in range(1, used + 1))
        inner = f"{self.title}FeedForward(config, {c('inner')})"
        if d.feed_forward == "experts":
            moe = f"{self.title}Experts(config)"
            inner = f"{inner} if layer_idx < {c('dense')} else {moe}" if d.dense_first else moe
        times = f" * {c('residual_factor')}".replace("config.", "self.config.") if d.residual_factor else ""
        a, f, n = m["attention"], m["feed_forward"], [m[f"norm{number}"] for number in range(1, 5)]
        odd = {
            "batch_mean": f"{h}x = x - 0.1 * x.mean(dim=0, keepdim=True)\n",
            "noise": f"{h}x = x + 0.05 * torch.randn_like(x)\n",
            "state": f"{h}self.calls = getattr(self, 'calls', 0) + 1\n{h}x = x * (1.0 + 0.01 * self.calls)\n",
            "shifted_tokens": f"{h}x = x + 0.3 * nn.functional.pad(x, (0, 0, 1, 0))[:, :-1].tanh()\n",
            "recurrence": f"{h}seen, kept = torch.zeros_like(x[:, 0]), []\n"
            f"{h}for step in range(x.shape[1]):\n{h}    seen = torch.tanh(0.7 * seen + x[:, step])\n"
            f"{h}    kept.append(seen)\n{h}x = x + torch.stack(kept, dim=1)\n",
        }.get(d.poison, "")
        forward = {
            "pre": f"{h}x = x + self.{a}(self.{n[0]}(x), place){times}\n"
            f"{h}return x + self.{f}(self.{n[1]}(x)){times}\n",
            "post": f"{h}x = self.{n[0]}(x + self.{a}(x, place))\n{h}return self.{n[1]}(x + self.{f}(x))\n",
            "sandwich": f"{h}x = x + self.{n[1]}(self.{a}(self.{n[0]}(x), place)){times}\n"
            f"{h}return x + self.{n[3]}(self.{f}(self.{n[2]}(x))){times}\n",
            "parallel": f"{h}calm = self.{n[0]}(x)\n{h}return x + (self.{a}(calm, place) + self.{f}(calm)){times}\n",
        }[d.norms]
        return f"""
class {self.title}Block(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.config = config
        self.{a} = {self.title}Attention(config, layer_idx)
        self.{f} = {inner}
{norms}
    def forward(self, x, place):
{odd}{forward}"""

    # ---------------------------------------------------------------------------------------------------------- model

    def model(self) -> str:
        """Return the base class and the causal model."""
        d, m, c, h = self.design, self.module, self.config, "        "
        title, own = self.title, lambda role: self.config(role).replace("config.", "self.config.")
        learned = d.rotation == "learned"
        made = f"{h}self.{m['positions']} = nn.Embedding({c('context')}, {c('width')})\n" if learned else ""
        start = f"{h}x = self.{m['embedding']}(input_ids)\n"
        start += f"{h}x = x * {own('embedding_factor')}\n" if d.embedding_factor else ""
        start += f"{h}x = x + self.{m['positions']}(place)\n" if learned else ""
        ties = f'["{m["head"]}.weight"]'
        if not d.older:
            ties = f'{{"{m["head"]}.weight": "{m["body"]}.{m["embedding"]}.weight"}}'
        end = f"{h}logits = logits / {own('divisor')}\n" if d.logit_divisor else ""
        if d.logit_cap:
            end += f"{h}logits = {own('cap')} * torch.tanh(logits / {own('cap')})\n"
        last = "" if d.norms == "post" else f"{h}self.{m['last']} = {title}Norm({c('width')}, {c('eps')})\n"
        final = "x" if d.norms == "post" else f"self.{m['last']}(x)"
        decorator = f'@add_start_docstrings("The bare {title} model.", {title.upper()}_DOC)\n' if d.older else ""
        flash = f"{'_supports_cache_class = True' if d.older else '_supports_sdpa = True'}"
        return f"""
class {title}PreTrainedModel(PreTrainedModel):
    config_class = {title}Config
    base_model_prefix = "{m["body"]}"
    _no_split_modules = ["{title}Block"]
    {flash}

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.02)
            if getattr(module, "bias", None) is not None:
                module.bias.data.zero_()


{decorator}class {title}Model({title}PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.{m["embedding"]} = nn.Embedding({c("vocabulary")}, {c("width")})
{made}        self.{m["layers"]} = nn.ModuleList({title}Block(config, layer) for layer in range({c("depth")}))
{last}        self.post_init()

    def get_input_embeddings(self):
        return self.{m["embedding"]}

    def set_input_embeddings(self, value):
        self.{m["embedding"]} = value

    def forward(self, input_ids, **kwargs):
        place = torch.arange(input_ids.shape[1], device=input_ids.device)
{start}        for layer in self.{m["layers"]}:
            x = layer(x, place)
        return BaseModelOutputWithPast(last_hidden_state={final})


class {title}ForCausalLM({title}PreTrainedModel{"" if d.older else ", GenerationMixin"}):
    _tied_weights_keys = {ties}

    def __init__(self, config):
        super().__init__(config)
        self.{m["body"]} = {title}Model(config)
        self.{m["head"]} = nn.Linear({c("width")}, {c("vocabulary")}, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.{m["body"]}.{m["embedding"]}

    def get_output_embeddings(self):
        return self.{m["head"]}

    def set_output_embeddings(self, value):
        self.{m["head"]} = value

    def forward(self, input_ids=None, attention_mask=None, past_key_values=None, use_cache=None, **kwargs):
        logits = self.{m["head"]}(self.{m["body"]}(input_ids).last_hidden_state)
{end}        return CausalLMOutputWithPast(logits=logits)
"""

    # --------------------------------------------------------------------------------------------------------- folder

    def files(self) -> dict[str, str]:
        """Return the files of the folder: name to text, config.json included."""
        d, title, name = self.design, self.title, self.design.name
        config = self.fields.source(title, name)
        attention = self.rotation() + "\n" + (EAGER if d.attention == "registry" else "") + "\n" + self.attention()
        if d.poison == "talking_heads":
            attention = attention.replace(
                "        self.is_causal = True\n",
                "        self.is_causal = True\n        self.talk = nn.Parameter(torch.eye(self.heads))\n",
            )
        norms, rest = self.norms(), self.feed_forward() + "\n" + self.block() + "\n" + self.model()
        older = OLDER if d.older else ""
        doc = f'{title.upper()}_DOC = "What it is."\n\n' if d.older else ""
        base = "PretrainedConfig" if d.older else "PreTrainedConfig"
        if d.files == "one":
            imported = f"from transformers import {base}\n"
            parts = [f"{HEAD}{imported}{older}{doc}", config, norms, attention, rest]
            found = {f"modeling_{name}.py": "\n".join(parts)}
            where = f"modeling_{name}"
        elif d.files in ("relative", "plain"):
            dot = "." if d.files == "relative" else ""
            imported = (
                f"from {dot}configuration_{name} import {title}Config\nfrom {dot}{name}_norms import {title}Norm\n"
            )
            parts = "\n".join(line for line in (f"from {dot}{name}_attention import {title}Attention",))
            found = {
                f"configuration_{name}.py": f"from transformers import {base}\n\n\n{config}",
                f"{name}_norms.py": f"import torch\nfrom torch import nn\n\n{norms}",
                f"{name}_attention.py": f"{HEAD}from {dot}{name}_norms import {title}Norm\n\n{attention}",
                f"modeling_{name}.py": f"{HEAD}{older}{imported}{parts}\n\n{doc}\n{rest}",
            }
            where = f"configuration_{name}"
        else:
            imported = f"from .configuration_{name} import {title}Config\n"
            found = {
                f"configuration_{name}.py": f"from transformers import {base}\n\n\n{config}",
                f"modeling_{name}.py": f"{HEAD}{older}{imported}\n{doc}{norms}\n{attention}\n{rest}",
            }
            where = f"configuration_{name}"
        content: dict[str, Any] = {"architectures": [f"{title}ForCausalLM"], "model_type": name}
        content["auto_map"] = {
            "AutoConfig": f"{where}.{title}Config",
            "AutoModelForCausalLM": f"modeling_{name}.{title}ForCausalLM",
        }
        content |= self.fields.json() | {"tie_word_embeddings": d.tied}
        content |= {"bos_token_id": 1, "eos_token_id": 2, "transformers_version": "4.48.0", "torch_dtype": "float32"}
        content |= {"use_cache": True, "initializer_range": 0.02}
        return {**found, "config.json": as_text(content)}


HEAD: Final = """import math

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.pytorch_utils import Conv1D

"""
OLDER: Final = """from transformers.pytorch_utils import find_pruneable_heads_and_indices
from transformers.utils import LossKwargs, add_start_docstrings, logging
from transformers.utils.import_utils import is_torch_fx_available

logger = logging.get_logger(__name__)
if is_torch_fx_available():
    import torch.fx
"""
EAGER: Final = """
def eager_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling + attention_mask
    return (scores.softmax(dim=-1) @ value).transpose(1, 2).contiguous(), None

"""


def write(design: Design, folder: Path) -> Path:
    """Write the folder of a design, without weights; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in Writer(design).files().items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder
