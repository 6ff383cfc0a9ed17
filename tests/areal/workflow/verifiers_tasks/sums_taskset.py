"""Sums for the tests of verifiers; a taskset of theirs."""

from __future__ import annotations

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str = ""


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        if self.data.answer == "broken":
            raise ValueError("a bug of the taskset")
        return float((trace.last_reply or "").endswith(f" {self.data.answer}"))


class SumTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        for question, answer in (("6*7?", "42"), ("1+1?", "2"), ("?", "broken")):
            yield SumTask(SumData(prompt=question, answer=answer), self.config.task)


__all__ = ["SumTaskset"]
