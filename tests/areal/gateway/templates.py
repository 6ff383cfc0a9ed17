"""Chat templates in the styles that models have, with one control token instead of many."""

from __future__ import annotations

_TOOLS = "{% if tools %}<|system|>{{ tools | tojson }}<eos>\n{% endif %}"
_CALLS = (
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
_THOUGHT = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
_START = "{% if add_generation_prompt %}<|assistant|>{% endif %}"

PLAIN = (
    _TOOLS
    + "{% for m in messages %}<|{{ m.role }}|>"
    + _THOUGHT
    + "{{ m.content }}"
    + _CALLS
    + "<eos>\n{% endfor %}"
    + _START
)
"""Append-only: every turn is shown as it was."""

FORGETFUL = (
    _TOOLS + "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{% if loop.index0 > ns.last %}" + _THOUGHT + "{% endif %}"
    "{{ m.content }}" + _CALLS + "<eos>\n{% endfor %}" + _START
)
"""Drops what was thought before the last question."""

EMPTY_THOUGHT = PLAIN.replace(_START, "{% if add_generation_prompt %}<|assistant|><think>\n\n</think>\n\n{% endif %}")
"""Begins every answer with an empty thought, and does not show it later."""

MERGED = (
    _TOOLS + "{% for m in messages %}"
    "{% if m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|user|>{% endif %}"
    "<tool_response>{{ m.content }}</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<eos>\n{% endif %}"
    "{% else %}<|{{ m.role }}|>" + _THOUGHT + "{{ m.content }}" + _CALLS + "<eos>\n{% endif %}{% endfor %}" + _START
)
"""Results in a row are one user turn."""

DATED = "<|system|>Today is {{ strftime_now('%d %b %Y') }}<eos>\n" + PLAIN
"""Reads the clock."""

STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system in the middle') }}{% endif %}{% endfor %}" + PLAIN
)
"""Refuses system turns after the first."""

NUMBERED = "{{ messages | length }} turns\n" + PLAIN
"""Says before everything how many turns there are: full renders never begin with earlier ones."""

COUNTING = PLAIN.replace(_START, "{% if add_generation_prompt %}<|assistant|>{{ messages | length }}:{% endif %}")
"""The start of an answer depends on how many turns were before."""
