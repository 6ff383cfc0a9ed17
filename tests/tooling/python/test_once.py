"""Answers that are kept with the object that gave them."""

import pytest

from tooling.python.once import once


class Tree:
    def __init__(self):
        self.runs: list[object] = []
        self.broken = False

    @once()
    def double(self, number: int, *, plus: int = 0) -> int:
        self.runs.append((number, plus))
        return 2 * number + plus

    @once(meanwhile=0)
    def depth(self, node: str) -> int:
        self.runs.append(node)
        if self.broken:
            raise RecursionError
        return 1 + self.depth({"a": "b", "b": "a"}[node])


def test_each_set_of_arguments_is_worked_out_once_for_each_object():
    tree, other = Tree(), Tree()
    assert [tree.double(2), tree.double(2), tree.double(2, plus=1), other.double(3)] == [4, 4, 5, 6]
    assert (tree.runs, other.runs) == ([(2, 0), (2, 1)], [(3, 0)])


def test_who_asks_for_itself_gets_what_holds_meanwhile():
    tree = Tree()
    assert tree.depth("a") == 2
    assert tree.runs == ["a", "b"]


def test_after_an_error_it_is_worked_out_again():
    tree = Tree()
    tree.broken = True
    with pytest.raises(RecursionError):
        tree.depth("a")
    tree.broken = False
    assert tree.depth("a") == 2
