"""Games of textarena for one player.

    environment: textarena
    environment_options: {id: GuessTheNumber-v0}
    host: {kind: subprocess, python: /path/to/.venv-environments/bin/python}

A game's seed goes into the random generator of its whole process, so a process plays one game at a time: host
subprocess. The policy gets what is new since its last turn, where textarena shows the whole history. Rewards exist at
the end of a game only, and are those of the last turn. Games for several players are refused: there is nobody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from areal.api import StepResult, TurnObservation
from areal.environment.adapters import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.api import AssistantTurn


class TextArenaEnvironments:
    """Makes games of one kind."""

    def __init__(self, id: str) -> None:
        """id: as in `textarena.make`, e.g. "GuessTheNumber-v0"."""
        self._textarena = require("textarena")
        self._id = id

    def create(self) -> TextArenaEpisode:
        """Return a game."""
        return TextArenaEpisode(self._textarena, self._id)


class TextArenaEpisode:
    """One game."""

    resets_fully: ClassVar[bool] = True
    _playing: ClassVar[TextArenaEpisode | None] = None
    """The game that owns the process's random generator."""

    def __init__(self, textarena: Any, name: str) -> None:
        self._textarena, self._name = textarena, name
        self._game: Any = None
        self._seen: str | int = ""
        """Of the history: the text so far, or how many entries."""

    async def reset(self, row: Mapping[str, Any], seed: int) -> TurnObservation:
        """See `areal.api.Environment`. The row is not used."""
        del row
        if TextArenaEpisode._playing not in (None, self):
            raise RuntimeError("two games in one process share a random generator; use host kind subprocess")
        TextArenaEpisode._playing = self
        self._game = self._textarena.make(self._name)
        self._game.reset(num_players=1, seed=seed)
        self._seen = ""
        return self._shown(self._news(""))

    async def step(self, answer: AssistantTurn) -> StepResult:
        """See `areal.api.Environment`. The text of a turn is the move."""
        if self._game is None:
            raise RuntimeError("step() after the end of the game")
        done, _ = self._game.step(answer.text)
        if not done:
            return StepResult(observation=self._shown(self._news(answer.text)))
        game, self._game = self._game, None
        rewards, facts = game.close()
        facts = dict((facts or {}).get(0, {}))
        info = {"invalid_move": float(facts["invalid_move"])} if "invalid_move" in facts else {}
        reason = str(facts.get("reason", "the game is over"))
        return StepResult(
            observation=self._shown(reason), reward=float((rewards or {}).get(0, 0.0)), terminated=True, info=info
        )

    async def close(self) -> None:
        """See `areal.api.Environment`."""
        self._game = None
        if TextArenaEpisode._playing is self:
            TextArenaEpisode._playing = None

    def _news(self, said: str) -> str:
        """Return what the player has not seen yet, without an echo of its own move."""
        player, history = self._game.get_observation()
        if isinstance(history, str):
            seen = str(self._seen or "")
            new = history[len(seen) :] if history.startswith(seen) else history
            self._seen = history
            return new.lstrip("\n").removeprefix(f"[Player] {said}").lstrip("\n") or "(nothing new)"
        entries, start = list(history), self._seen or 0
        self._seen = len(entries)
        lines = [str(entry[1]) for entry in entries[int(start) :] if entry[0] != player]
        return "\n".join(lines) or "(nothing new)"

    def _shown(self, text: str) -> TurnObservation:
        return TurnObservation(messages=({"role": "user", "content": text},))
