"""Fits the weights of `tooling/commit/shapes.py` and `tooling/commit/habits.py`, and prints them.

    python benchmarks/commit_fit.py REPOSITORY... [--types 500] [--scopes 250]

Types: a logistic regression on the numbers that `facts` gives of a change, without its repository's history. Scopes: a
conditional logit on the numbers that `Habits.facts` gives of each possible scope, with the history before the commit.
Every repository weighs the same, and the weights are kept small a little (L2). `benchmarks/commit_scope.py` measures
what comes of it, on other repositories.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from commit_scope import cases
from torch.nn.functional import cross_entropy

from tooling.commit.habits import WEIGHTS
from tooling.commit.history import CommitHistory
from tooling.commit.shapes import USUAL, facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from commit_scope import Case
    from torch import Tensor

L2: Final = 1e-3
TYPES: Final = sorted(USUAL)


def minimize(parameters: list[Tensor], loss: Callable[[], Tensor]) -> None:
    """Find the least loss."""
    optimizer = torch.optim.LBFGS(parameters, max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)  # type: ignore[arg-type]  # torch says float, and takes tensors


def fit_types(repositories: list[list[Case]]) -> None:
    """Print the shares and the weights of types."""
    known = [[case for case in found if case.type in USUAL] for found in repositories]
    rows = [(case, 1 / len(found)) for found in known for case in found]
    shares: Counter[str] = Counter()
    for case, weight in rows:
        shares[case.type] += weight / len(known)  # type: ignore[assignment]  # counters hold any number
    numbers = torch.tensor([facts(case.commit.files) for case, _ in rows], dtype=torch.float64)
    right = torch.tensor([TYPES.index(case.type) for case, _ in rows])
    weight = torch.tensor([weight for _, weight in rows], dtype=torch.float64)
    mean, deviation = numbers.mean(0), numbers.std(0) + 1e-6
    weights = torch.zeros(numbers.shape[1], len(TYPES), dtype=torch.float64, requires_grad=True)
    constants = torch.zeros(len(TYPES), dtype=torch.float64, requires_grad=True)
    scaled = (numbers - mean) / deviation

    def loss() -> Tensor:
        each = cross_entropy(scaled @ weights + constants, right, reduction="none")
        return (each * weight).sum() / weight.sum() + L2 * weights.square().sum()

    minimize([weights, constants], loss)
    slopes = weights.detach() / deviation[:, None]
    starts = constants.detach() - mean @ slopes
    for place, kind in enumerate(TYPES):
        row = [starts[place].item() - math.log(shares[kind] or 1e-4), *slopes[:, place].tolist()]
        print(f'"{kind}": {shares[kind]:.3f}   ({", ".join(f"{number:.2f}" for number in row)}),')


def fit_scopes(repositories: list[list[Case]]) -> None:
    """Print the weights of scopes."""
    prepared = []
    for found in repositories:
        rows = []
        for case in found:
            history = CommitHistory(case.commit.author)
            for each in case.before:
                history.learn(each)
            possible = history.scopes.facts(case.commit.files)
            if case.scope in possible:
                rows.append((torch.tensor(list(possible.values())), list(possible).index(case.scope)))
        prepared.append(rows)
    weights = torch.zeros(len(WEIGHTS), requires_grad=True)

    def loss() -> Tensor:
        means = [
            torch.stack([cross_entropy(numbers @ weights, torch.tensor(right)) for numbers, right in rows]).mean()
            for rows in prepared
            if rows
        ]
        return torch.stack(means).mean() + L2 * weights.square().sum()

    minimize([weights], loss)
    print(f"WEIGHTS: Final = ({', '.join(f'{number:.2f}' for number in weights.tolist())})")


def main() -> None:
    """Read the repositories, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", type=Path, metavar="REPOSITORY", nargs="+", help="clones with their history")
    parser.add_argument("--types", type=int, default=500, metavar="N", help="commits of each for types (default: 500)")
    parser.add_argument("--scopes", type=int, default=250, metavar="N", help="for scopes (default: 250)")
    arguments = parser.parse_args()
    for repository in arguments.repositories:
        if not repository.is_dir():
            parser.error(f"{repository}: no such folder; name clones with their history")
    newest = max(arguments.types, arguments.scopes)
    repositories = [list(cases(repository, newest, set())) for repository in arguments.repositories]
    fit_types([found[: arguments.types] for found in repositories])
    fit_scopes([found[: arguments.scopes] for found in repositories])


if __name__ == "__main__":
    main()
