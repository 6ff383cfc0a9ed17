"""Seeds that an episode hands on to what it uses, such as an environment."""

from __future__ import annotations

import asyncio

from areal.utils.seeding import EpisodeSeeds, episode_seeds, seeds_of_episode


def test_seeds_are_those_of_the_episode_that_runs_and_zeros_outside():
    async def episode(number):
        with seeds_of_episode(EpisodeSeeds(prompt=number, sample=number + 1)):
            await asyncio.sleep(0)
            inner = await asyncio.create_task(read())
            return episode_seeds(), inner

    async def read():
        return episode_seeds()

    async def both():
        return await asyncio.gather(episode(1), episode(5))

    assert asyncio.run(both()) == [
        (EpisodeSeeds(prompt=1, sample=2),) * 2,
        (EpisodeSeeds(prompt=5, sample=6),) * 2,
    ]
    assert episode_seeds() == EpisodeSeeds(prompt=0, sample=0)
