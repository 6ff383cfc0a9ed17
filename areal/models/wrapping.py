"""Text models inside checkpoints of several models: their names on disk, what is kept for export, what is refused.

A wrapped config holds the text model's own config in a section (`text_config`). The family is that of the section's
`model_type`; a `Wrapper` says how the whole checkpoint differs from that of the text model alone. Only text is
computed: tensors of towers are kept, not read, and written back unchanged, and a token that stands for an image is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from areal.api import CheckpointError, ModelError
from areal.models.config_fields import TOKEN_FIELDS, ConfigFields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from torch import Tensor

TIED: Final = "tie_word_embeddings"


@dataclass(frozen=True, kw_only=True)
class NameLayout:
    """Names of a whole checkpoint, as far as they differ from those of its text model alone."""

    prefixes: tuple[tuple[str, str], ...]
    """(Beginning in the text model's own checkpoint, beginning in the whole one); the longest that fits applies."""
    kept: tuple[str, ...]
    """Modules, or single tensors, of what is not the text model."""

    def outer(self, name: str) -> str:
        """Return the name in the whole checkpoint of a tensor of the text model's own."""
        fitting = [pair for pair in self.prefixes if name.startswith(pair[0])]
        if not fitting:
            raise ModelError(f"{name} has no place in the checkpoint around its text model")
        own, whole = max(fitting, key=lambda pair: len(pair[0]))
        return whole + name.removeprefix(own)

    def inner(self, name: str) -> tuple[str, ...]:
        """Return the names in the text model's own checkpoint that would have this one; none for what is kept."""
        found = [own + name.removeprefix(whole) for own, whole in self.prefixes if name.startswith(whole)]
        return () if self.keeps(name) else tuple(each for each in found if self.outer(each) == name)

    def keeps(self, name: str) -> bool:
        """Return whether a tensor of the whole checkpoint is kept without being read."""
        return any(name == each or name.startswith(f"{each}.") for each in self.kept)


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """What is proven of the checkpoints of one `model_type` around a text model."""

    model_type: str
    inner_types: tuple[str, ...]
    """Types of text models that were compared; that of a section without `model_type` is the first."""
    layouts: tuple[NameLayout, ...]
    """The first is the one that transformers writes."""
    tied: tuple[tuple[bool | None, bool | None, bool], ...]
    """(Outside, in the section, whether the head is tied then); None: not said."""
    placeholders: dict[str, int | None]
    """Outer fields with tokens that stand for something other than text, and the token where the field is absent."""
    sections: tuple[str, ...] = ()
    """Outer fields with configs of other parts, which the text model never sees."""
    idle: tuple[str, ...] = ()
    """Outer fields that do not change what the text model computes."""
    fixed: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Outer fields of which only these values were compared."""
    text_fixed: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Fields of the text model of which only these values were compared inside the whole."""
    replaced: dict[str, Any] = field(default_factory=dict)
    """Fields of the text model that the whole leaves out, and the value that does nothing: what the file says is kept,
    and computed is this."""
    section: str = "text_config"

    def unwrap(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], Wrapping]:
        """Return the text model's own config, and what is around it. Raises ModelError for a config that says something
        which was not compared: inner fields win, and the outer ones have to agree."""
        inner = config.get(self.section)
        if not isinstance(inner, dict):
            raise ModelError(
                f"config of model_type {self.model_type!r}: {self.section} is {inner!r}, expected the object of its "
                "text model"
            )
        inner = {"model_type": self.inner_types[0], **inner}
        if inner["model_type"] not in self.inner_types:
            raise ModelError(
                f"config of model_type {self.model_type!r}: {self.section}.model_type is {inner['model_type']!r}; "
                f"inside of it, proven are {', '.join(self.inner_types)}"
            )
        outer = {name: value for name, value in config.items() if name != self.section}
        inner[TIED] = self._tied(outer, inner)
        self._check(outer, inner)
        said = {name: inner[name] for name in self.replaced if name in inner}
        return inner | self.replaced, Wrapping(wrapper=self, around=outer, layout=self.layouts[0], said=said)

    def _tied(self, outer: Mapping[str, Any], inner: Mapping[str, Any]) -> bool:
        said = (outer.get(TIED), inner.get(TIED))
        found = next((tied for *values, tied in self.tied if tuple(values) == said), None)
        if found is None or any(value not in (None, found) for value in said):
            effect = "refuses it" if found is None else f"takes {found}"
            raise ModelError(
                f"config of model_type {self.model_type!r}: {TIED} is {said[0]}, {self.section}.{TIED} is {said[1]}, "
                f"and transformers {effect}; expected that they agree",
                fix=f"say the same in both places, or leave one out, of {TIED}",
            )
        return found

    def _check(self, outer: Mapping[str, Any], inner: Mapping[str, Any]) -> None:
        """Refuse fields that may change the text model in a way that was not compared."""
        for name, allowed in self.text_fixed.items():
            if name in inner and not any(inner[name] == value for value in allowed):
                raise ModelError(
                    f"config of model_type {self.model_type!r}: {self.section}.{name} is {inner[name]!r}, for which "
                    f"the whole computes something else than its text model; supported is "
                    f"{' or '.join(map(repr, allowed))}"
                )
        known = {*self.sections, *self.idle, *self.placeholders, *TOKEN_FIELDS, TIED}
        fields = ConfigFields(outer)
        for name, allowed in self.fixed.items():
            fields.require(name, allowed)
        agreed = {name for name, value in outer.items() if name in inner and inner[name] == value}
        fields.finish({*known, *self.fixed, *agreed} - {"quantization_config", "auto_map"})


@dataclass(frozen=True, kw_only=True)
class Wrapping:
    """What is around one text model: the rest of its config, its names on disk, and where the other tensors are."""

    wrapper: Wrapper
    around: Mapping[str, Any]
    """The config without the section of the text model."""
    layout: NameLayout
    said: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the text model as the file has them, where something else is computed."""
    kept: tuple[str, ...] = ()
    """Tensors of the checkpoint that are not read."""
    source: Path | None = None
    """Folder of the checkpoint, from which they are copied on export."""
    open_folder: Callable[[Path], Mapping[str, Tensor]] | None = None
    """Gives the tensors of a folder by name, each read when it is asked for."""

    def located(self, names: Iterable[str], *, own: Iterable[str], source: Path | None) -> Wrapping:
        """Return it for a checkpoint with these names, in the layout that explains most of them. own: names in the text
        model's own checkpoint."""
        stored, own = set(names), list(own)

        def explained(layout: NameLayout) -> int:
            return sum(layout.outer(name) in stored for name in own) + sum(map(layout.keeps, stored))

        layout = max(self.wrapper.layouts, key=explained)
        names = sorted(stored)
        return replace(self, layout=layout, kept=tuple(each for each in names if layout.keeps(each)), source=source)

    def config(self, inner: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config of the whole checkpoint around that of its text model."""
        left_out = {"architectures", *self.wrapper.replaced}
        section = {name: value for name, value in inner.items() if name not in left_out} | dict(self.said)
        rest = {name: value for name, value in self.around.items() if name != "torch_dtype"}
        return {**rest, TIED: inner[TIED], self.wrapper.section: section}

    def kept_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that are not read, as views of the files. Raises CheckpointError when they are gone."""
        what = f"a checkpoint of model_type {self.wrapper.model_type!r} is more than its text model"
        if self.source is None or self.open_folder is None:
            raise CheckpointError(
                f"{what}, and this one was not read from a folder", fix="load it with from_pretrained(FOLDER)"
            )
        try:
            stored = self.open_folder(self.source)
            absent = [name for name in self.kept if name not in stored]
        except ModelError as error:
            raise CheckpointError(f"{what}, and {self.source} cannot be read any more: {error}") from error
        if absent:
            raise CheckpointError(f"{what}, and {self.source} has no {', '.join(absent[:4])} any more")
        return {name: stored[name] for name in self.kept}

    def placeholders(self) -> dict[int, str]:
        """Return the tokens that stand for something other than text, and the fields that say so."""
        found = {name: self.around.get(name, default) for name, default in self.wrapper.placeholders.items()}
        lists = {name: value if isinstance(value, list) else [value] for name, value in found.items()}
        return {token: name for name, tokens in lists.items() for token in tokens if isinstance(token, int)}


def whole_config(args: Any) -> dict[str, Any]:
    """Return the content of config.json for a model's arguments: of the whole checkpoint, where it is around them."""
    wrapping: Wrapping | None = getattr(args, "wrapping", None)
    inner: dict[str, Any] = args.to_hf_config()
    return inner if wrapping is None else wrapping.config(inner)


def refused_tokens(args: Any) -> dict[int, str]:
    """Return the tokens that no text may hold, and the config fields that say so; {} for nearly all models."""
    wrapping: Wrapping | None = getattr(args, "wrapping", None)
    return {} if wrapping is None else wrapping.placeholders()


def check_text(tokens: Tensor, positions: Tensor, refused: Mapping[int, str]) -> None:
    """Raise ModelError when a token stands for something other than text: its embedding is that of an image, a sound
    or a film, which is not there. In text, all sections of a position are the same number."""
    if positions.shape != tokens.shape:
        raise ModelError(
            f"positions are {list(positions.shape)} for {list(tokens.shape)} tokens; only text is computed here, where "
            "a token has one position: its number in the text"
        )
    for token, name in refused.items():
        if bool((tokens == token).any()):
            raise ModelError(
                f"a row has the token {token}, which is {name} of the config and stands for something other than "
                "text; only text is computed here",
                fix="leave out rows with images, films or sounds",
            )
