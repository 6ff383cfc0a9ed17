r"""Code: the last fenced block of a completion, run on the cases of its row. Python, C++ and JavaScript.

    completion "```python\nprint(sum(map(int, input().split())))\n```"
    cases [{"input": "1 2", "output": "3"}, {"input": "2 2", "output": "4"}]         -> 1.0
    ... of which one is wrong                                  -> 0.0, or 0.5 with scoring: fraction
    no block, a block cut off, or one in another language      -> 0.0
    does not compile, crashes, takes too long, floods          -> that case counts as failed
    no cases, or cases that make no sense                      -> FaultError(DATA_INVALID): the row is at fault
    processes cannot be started                                -> ExecutionError, counted and retried

Columns of the row: `cases` (`areal.reward.cases`), and where they exist `fn_name` (the function to call), `checker`
(below), `language`, `time_limit` (seconds of processor time) and `memory_limit` (megabytes). `areal.dataset.code` makes
these of rows of APPS, TACO and LiveCodeBench.

A checker decides where many answers are right. As a column it is Python source that defines
`check(input, output, expected)`, for functions `check(arguments, result, expected)`; it is run like a program, because
rows are not trusted either. As an option it is a function of your own with these parameters, "my_package.checks:check",
called in the reward's process. Both return true, false, or a number from 0 to 1.

How programs are kept from harm and from cheating: `areal.reward.programs`. What is expected never reaches a process
that a program could look into.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, FaultError, FaultKind, load
from areal.reward.cases import OutputComparison, ProgramCase, read_cases
from areal.reward.execution import ExecutionError
from areal.reward.fences import last_block
from areal.reward.programs import LANGUAGES, PYTHON, Language, Program, Run, RunLimits, Verdict
from areal.utils.logging import getLogger
from areal.utils.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

logger = getLogger(__name__)

_WANTED_ISOLATION: Final = frozenset({"landlock", "system call filter", "resource limits"})
_SCORINGS: Final = ("all", "fraction")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeScore:
    """How a program fared on the cases of a row."""

    score: float
    details: tuple[str, ...]
    """One for each case that was tried, "" where it passed; or one that says why nothing was tried."""


class CodeReward:
    """Scores the program in a completion by the cases of its row.

    languages: of `python`, `cpp`, `javascript`; a block with another label does not count, one without label is in the
        row's language, else in the first of these.
    scoring: `all` gives 1.0 when every case passes, else 0.0, and stops at the first that fails; `fraction` gives the
        mean over cases.
    compare, float_tolerance: see `areal.reward.cases`. checker: "module:function", see above; it goes before a column.
    limits: of each run, by the names of `areal.reward.programs.RunLimits`, such as {cpu_seconds: 6, memory_megabytes:
        512}. A row's own time limit, times time_factor, and memory limit go before them; time_factor: 0 ignores both.
    total_seconds: wall time for all cases; keep it, with that of compiling, below rollout.reward_timeout_seconds. When
        a case before has timed out, cases that are not reached count as failed; otherwise it is a fault.
    max_cases: try at most so many, the first ones; 0 tries all.
    require_isolation: refuse to start where the kernel offers neither Landlock nor the filter of system calls.

    Raises ConfigError at the start for options that make no sense and for a compiler or interpreter that is absent.
    """

    def __init__(
        self,
        *,
        languages: Sequence[str] = ("python",),
        scoring: str = "all",
        compare: str = "tokens",
        float_tolerance: float | None = None,
        checker: str = "",
        limits: Mapping[str, float] | None = None,
        total_seconds: float = 12.0,
        time_factor: float = 1.0,
        max_cases: int = 0,
        require_isolation: bool = False,
    ) -> None:
        if scoring not in _SCORINGS:
            raise ConfigError(f"scoring is {scoring!r}, expected one of {', '.join(_SCORINGS)}")
        if total_seconds <= 0 or time_factor < 0 or max_cases < 0:
            raise ConfigError(
                f"total_seconds {total_seconds}, time_factor {time_factor}, max_cases {max_cases}; expected seconds "
                "above 0, the others at least 0"
            )
        self._languages = [_language(name) for name in languages]
        if not self._languages:
            raise ConfigError(f"languages is empty, expected some of {', '.join(LANGUAGES)}")
        for language in self._languages:
            language.find_tool()
        self._labels = {label: language for language in self._languages for label in language.labels}
        self._comparison = OutputComparison(kind=compare, tolerance=float_tolerance)
        self._fraction, self._max_cases, self._total_seconds = scoring == "fraction", max_cases, total_seconds
        self._time_factor = time_factor
        self._checker: Callable[..., Any] | None = load("checker", checker, {}) if checker else None
        try:
            self._limits = RunLimits(**(limits or {}))  # type: ignore[arg-type]  # it checks the values itself
        except (TypeError, ValueError) as error:
            known = ", ".join(field.name for field in fields(RunLimits))
            raise ConfigError(f"limits is {dict(limits or {})!r}: {error}; its names are {known}") from error
        self._check_isolation(require_isolation)

    def __call__(
        self, prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **data: Any
    ) -> float:
        """Score one completion; see the top of this file."""
        return self.score(completions, **data).score

    def score(
        self,
        completion: str,
        *,
        cases: Any = None,
        fn_name: str | None = None,
        checker: str | None = None,
        language: str | None = None,
        time_limit: float | None = None,
        memory_limit: float | None = None,
        **_: Any,
    ) -> CodeScore:
        """Score one completion and say what became of each case.

        Raises FaultError(DATA_INVALID) when the row is at fault, ExecutionError when the machine is.
        """
        function = fn_name or ""
        try:
            tried = read_cases(cases, function=function)[: self._max_cases or None]
            default = _language(language) if language else self._languages[0]
            limits = self._limits_of(time_limit, memory_limit)
        except ValueError as error:
            raise FaultError(FaultKind.DATA_INVALID, str(error)) from error
        if default not in self._languages:
            names = ", ".join(known.name for known in self._languages)
            raise FaultError(FaultKind.DATA_INVALID, f"the row is in {default.name}, and `languages` has {names}")
        labels = default.labels if language else self._labels
        block = last_block(completion, labels)
        if block is None or not block[1].strip():
            return CodeScore(score=0.0, details=("no closed block of code in a wanted language",))
        chosen = self._labels.get(block[0], default)
        with Program(block[1], chosen, function=function, limits=limits) as program:
            if program.compile_errors:
                return CodeScore(score=0.0, details=(f"does not compile: {program.compile_errors}",))
            return self._try(program, tried, checker or "")

    def _try(self, program: Program, cases: Sequence[ProgramCase], checker: str) -> CodeScore:
        deadline, limits = time.monotonic() + self._total_seconds, program.limits
        earned, details, late = 0.0, [], False
        for number, case in enumerate(cases, 1):
            left = deadline - time.monotonic()
            if left <= 0 and not late:
                reason = f"total_seconds ({self._total_seconds:g}) passed after {number - 1} of {len(cases)} cases"
                raise FaultError(
                    FaultKind.REWARD_TIMEOUT, f"{reason}, none of which took too long; raise it, or lower max_cases"
                )
            if left <= 0:
                break
            reason = f"total_seconds ({self._total_seconds:g}) passed within case {number} of {len(cases)}"
            short = FaultError(FaultKind.REWARD_TIMEOUT, f"{reason}; raise it, or lower max_cases")
            try:
                run = program.run(case.stdin, wall_seconds=left)
            except ExecutionError as error:
                if left < limits.wall and time.monotonic() >= deadline:
                    raise short from error  # what was left of the total ended before the program had begun
                raise
            late = late or (
                run.verdict is Verdict.TIME and (left >= limits.wall or run.cpu_seconds >= limits.cpu_seconds)
            )
            if run.verdict is Verdict.TIME and not late:
                raise short  # the program has not used up its own limit
            credit, detail = self._credit(run, case, checker)
            earned += credit
            details.append(detail)
            if detail and not self._fraction:
                break
        score = earned / len(cases) if self._fraction else float(len(details) == len(cases) and not any(details))
        return CodeScore(score=score, details=tuple(details))

    def _credit(self, run: Run, case: ProgramCase, checker: str) -> tuple[float, str]:
        """Return the credit for one case, from 0 to 1, and why it is not 1."""
        if run.verdict is not Verdict.ENDED or run.status != 0:
            return 0.0, run.ending
        output = run.output.decode("utf-8", "surrogateescape")
        found: Any = output
        if case.calls:
            try:
                found = json.loads(output)
            except (ValueError, RecursionError):
                return 0.0, "the function returned nothing that JSON can hold"
        if self._checker is not None or checker:
            return self._ask_checker(checker, case, found)
        if case.calls:
            right = any(self._comparison.results_equal(found, result) for result in case.results)
        else:
            right = self._comparison.outputs_equal(output, case.expected or "")
        return (1.0, "") if right else (0.0, f"wrong output: {output[:200]!r}")

    def _ask_checker(self, checker: str, case: ProgramCase, found: Any) -> tuple[float, str]:
        if case.calls:
            arguments = [json.loads(case.stdin), found, case.results[0]]
        else:
            arguments = [case.stdin.decode("utf-8", "surrogateescape"), found, case.expected]
        if self._checker is not None:
            verdict = self._checker(*arguments)
        else:
            with Program(checker, PYTHON, function="check", limits=self._limits) as program:
                run = program.run(json.dumps(arguments).encode())
            if run.ending:
                raise FaultError(FaultKind.DATA_INVALID, f"the row's checker failed: {run.ending}")
            verdict = json.loads(run.output)
        if not isinstance(verdict, bool | int | float) or not 0 <= verdict <= 1:
            message = f"the checker returned {verdict!r:.100}, expected true, false or a number from 0 to 1"
            raise FaultError(FaultKind.DATA_INVALID, message)
        return float(verdict), "" if verdict == 1 else f"the checker gave {float(verdict):g}"

    def _limits_of(self, time_limit: float | None, memory_limit: float | None) -> RunLimits:
        limits = self._limits
        for name, value in (("time_limit", time_limit), ("memory_limit", memory_limit)):
            if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ValueError(f"the row's {name} is {value!r:.50}, expected a number above 0")
        if self._time_factor and time_limit is not None:
            limits = replace(limits, cpu_seconds=float(time_limit) * self._time_factor)
        if self._time_factor and memory_limit is not None:
            limits = replace(limits, memory_megabytes=max(64, math.ceil(memory_limit)))
        return limits

    def _check_isolation(self, required: bool) -> None:
        """Run nothing once, to see what the kernel offers before a model's first program is run."""
        with Program("", PYTHON) as program:
            missing = sorted(_WANTED_ISOLATION - set(program.run(b"").isolation))
        if not missing:
            return
        text = f"reward 'code': this kernel or container does not offer {', '.join(missing)} around programs of a model"
        if required:
            raise ConfigError(f"{text}; run on Linux 5.13 or later, or set require_isolation: false")
        logger.warning("%s; see areal/reward/programs.py for what that leaves open", text)


def _language(name: str) -> Language:
    if name not in LANGUAGES:
        hint = did_you_mean(name, LANGUAGES)
        raise ConfigError(f"language {name!r} is unknown: {hint and hint + ' '}expected {', '.join(LANGUAGES)}")
    return LANGUAGES[name]
