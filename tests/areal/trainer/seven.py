"""An environment that a random model learns in seconds: every turn is one character, and "7" is worth a reward."""

from __future__ import annotations

from areal.api import StepResult, TurnObservation

TURNS = 3


class Seven:
    """shuffled: the reward is for a digit drawn from the seed and the turn, which nothing shows."""

    def __init__(self, shuffled: bool = False) -> None:
        self.shuffled = shuffled

    def create(self):
        return SevenEpisode(self.shuffled)


class SevenEpisode:
    def __init__(self, shuffled):
        self.shuffled, self.turn = shuffled, TURNS

    async def reset(self, row, seed):
        self.seed, self.turn = seed, 0
        return self._said("=")

    async def step(self, answer):
        if self.turn >= TURNS:
            raise RuntimeError("the episode is over")
        wanted = str((self.seed >> (4 * self.turn)) % 10) if self.shuffled else "7"
        self.turn += 1
        return StepResult(
            observation=self._said("="), reward=float(answer.text == wanted), terminated=self.turn == TURNS
        )

    async def close(self):
        self.turn = TURNS

    def _said(self, text):
        return TurnObservation(messages=({"role": "user", "content": text},))
