"""Workflows for the tests of the templates, and mistakes that a person may well make in one."""

from __future__ import annotations

FEEDBACK = 'No!\n"""{{ 7*7 }} {% raw %} \\n \\ \' {x} ünd ' + "noch einmal " * 8
UNITS: dict[str, dict[str, object]] = {
    "plain_answer": {"style": "single_turn"},
    "second_try": {"style": "multi_turn", "max_turns": 2, "turn_discount": 0.0},
    "odd_words": {"style": "multi_turn", "feedback": FEEDBACK},
    "with_tools": {"style": "tool_use", "max_calls": 2},
    "with_images": {"style": "vision_tokens"},
    "with_pixels": {"style": "vision"},
}


SCORE = "        value = await score(self.reward, prompt, completion, prompt_ids, response.output_tokens, columns)\n"
MISTAKES = {
    "plain_answer": [
        ("builder = TrajectoryBuilder()", "builder = self.builder"),
        (SCORE, f'        __import__("time").sleep(0.2)\n{SCORE}'),
        (SCORE, f"        try:\n    {SCORE}        except Exception:\n            value = 0.0\n"),
        ("builder.add_response(response, turn=0)", "builder.add_response(one_version(response), turn=0)"),
        ("builder.add_response(response, turn=0)", "builder.add_response(other_logprobs(response), turn=0)"),
        ("builder.add_prompt(prompt_ids)\n", "builder.add_prompt(prompt_ids)\n        prompt = prompt[1:]\n"),
    ],
    "second_try": [
        ("builder.add_response(response, turn=turn)", "builder.add_response(response, turn=0)"),
        ("(num_turns - 1)", "num_turns"),
        ("after_answer(self._feedback_ids, response.output_tokens)", "self._feedback_ids[1:]"),
        ("            return None\n", "            raise\n"),
        (" or stop_reason is StopReason.LENGTH", ""),
    ],
    "with_tools": [
        ("self.gconfig.max_new_tokens - builder.num_sampled", "self.gconfig.max_new_tokens"),
        ("num_failed + result.failed", "num_failed"),
        ("stop=(*gconfig.stop, CALL_END)", "stop=gconfig.stop"),
        ("builder.add_observation(observation, images)", "builder.tokens.extend(observation)"),
        ("StopReason.LENGTH or turn == self.max_calls", "StopReason.LENGTH"),
    ],
    "with_pixels": [
        ("builder.add_prompt(prompt_ids, images)", "builder.add_prompt(prompt_ids)"),
        ("reward_columns(data)", "reward_columns(data, with_images=True)"),
        ("builder = TrajectoryBuilder()", "builder = self.builder"),
    ],
    "with_images": [
        ("reward_columns(data)", "reward_columns(data, with_images=True)"),
        ("first_token=first_image_token", "first_token=None"),
        ("builder = TrajectoryBuilder()", "builder = self.builder"),
    ],
}
"""By unit, what is replaced by what."""

_CONSTRUCTION = "        self.tokenizer = tokenizer\n"
_SHARED = f"{_CONSTRUCTION}        self.builder = TrajectoryBuilder()\n"
_HELPERS = """

def one_version(response: Any) -> Any:
    from dataclasses import replace

    return replace(response, output_versions=[response.output_versions[-1]] * len(response.output_versions))


def other_logprobs(response: Any) -> Any:
    from dataclasses import replace

    return replace(response, output_logprobs=[value * 1.01 - 0.001 for value in response.output_logprobs])
"""


def mistaken(unit: str, module: str) -> list[str]:
    """Return the source of a unit once for each mistake."""
    for old, _ in MISTAKES[unit]:
        assert old in module, f"{unit} has no {old!r} any more"
    return [module.replace(old, new).replace(_CONSTRUCTION, _SHARED) + _HELPERS for old, new in MISTAKES[unit]]
