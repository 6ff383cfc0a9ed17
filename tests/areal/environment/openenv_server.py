"""A server of openenv for the tests of its adapter: `.venv-openenv/bin/python openenv_server.py PORT SESSIONS`."""

from __future__ import annotations

import os
import random
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app


class Move(Action):
    number: int


class Seen(Observation):
    text: str


class Sums(Environment):
    """Adds up numbers until ten; 99 raises, 98 ends the server."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.total = 0

    def reset(self, seed=None, episode_id=None, goal=10, **options):
        self.total, self.goal = random.Random(seed).randint(0, 3), goal
        return Seen(text=f"{self.total} of {goal}", done=False, reward=None)

    def step(self, action, timeout_s=None, **options):
        if action.number == 99:
            raise ValueError("a bug of the server")
        if action.number == 98:
            os._exit(3)
        self.total += action.number
        done = self.total >= self.goal
        return Seen(text=f"{self.total}", done=done, reward=1.0 if done else None)

    @property
    def state(self):
        return State()


if __name__ == "__main__":
    port, sessions = int(sys.argv[1]), int(sys.argv[2])
    # Pings that nobody answers end a connection within a second.
    app = create_app(Sums, Move, Seen, max_concurrent_envs=sessions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", ws_ping_interval=0.5, ws_ping_timeout=0.5)
