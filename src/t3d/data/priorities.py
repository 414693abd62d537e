"""A sum tree over the priorities of a replay's rows, of wide nodes and fixed shapes, so that CUDA graphs can record it.

Sums are always recomputed from all they sum: differences would pile up rounding errors. Rows that are set twice get
the larger priority, in whatever order a GPU writes.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

FAN_OUT = 128  # children of a node; with 32, 64 or 256, one seed's draw from a million rows took longer on the CPU


class SumTree:
    """Priorities (M, rows), and above them sums of blocks of FAN_OUT, up to one block for each member."""

    def __init__(self, members: int, rows: int, device: torch.device | str = "cpu") -> None:
        self.rows = rows
        *sums, leaves = _blocks(rows)
        self.levels = [  # the root first; (M, blocks, FAN_OUT), zero where there is nothing
            *(torch.zeros(members, blocks, FAN_OUT, device=device, dtype=torch.float64) for blocks in sums),
            torch.zeros(members, leaves, FAN_OUT, device=device, dtype=torch.float32),
        ]
        self._member = torch.arange(members, device=device).unsqueeze(1)  # (M, 1)

    @property
    def priorities(self) -> Tensor:
        return self.levels[-1].flatten(1)[:, : self.rows]

    def find(self, u: Tensor) -> Tensor:
        """Returns the rows (M, B) at the shares u of each member's total, in [0, 1).

        A row is found with probability priority / total, and never if it is zero, unless all are.
        """
        sums = _running(self.levels[0].flatten(1))  # (M, FAN_OUT)
        index, rest = _search(sums, u * sums[:, -1:])
        for level in self.levels[1:]:
            index = index.clamp(max=level.shape[1] - 1)  # only a priority that is NaN leads further
            children = level.flatten(0, 1).index_select(0, (self._member * level.shape[1] + index).view(-1))
            child, rest = _search(_running(children), rest.view(-1, 1))  # (M * B, 1)
            index, rest = index * FAN_OUT + child.view_as(u), rest.view_as(u)
        return index.clamp(max=self.rows - 1)

    def set(self, member: Tensor, row: Tensor, priority: Tensor) -> None:
        """Sets the priorities of some rows, of a row that comes twice to the larger; member may have fewer columns."""
        leaves = self.levels[-1]
        leaf = (member * (leaves.shape[1] * FAN_OUT) + row).view(-1)
        leaves.view(-1).index_fill_(0, leaf, 0)
        leaves.view(-1).scatter_reduce_(0, leaf, priority.reshape(-1), "amax")
        for children, parents in pairwise(self.levels[::-1]):
            row = row // FAN_OUT
            if children.shape[0] * children.shape[1] <= row.numel():  # all sums are less to do than these
                _sum_all(parents, children)
            else:
                blocks = (member * children.shape[1] + row).view(-1)
                sums = _running(children.flatten(0, 1).index_select(0, blocks))[:, -1]
                parents.view(-1).index_copy_(0, (member * (parents.shape[1] * FAN_OUT) + row).view(-1), sums)

    def rebuild(self) -> None:
        """Computes all sums anew, after priorities were written into the view."""
        for children, parents in pairwise(self.levels[::-1]):
            _sum_all(parents, children)


def bytes_needed(members: int, rows: int) -> int:
    """The memory that a tree takes."""
    *sums, leaves = _blocks(rows)
    return members * FAN_OUT * (8 * sum(sums) + 4 * leaves)


def _blocks(rows: int) -> list[int]:
    """Blocks on each level, the root's one first."""
    blocks = [-(-rows // FAN_OUT)]
    while blocks[0] > 1:
        blocks.insert(0, -(-blocks[0] // FAN_OUT))
    return blocks


def _running(values: Tensor) -> Tensor:
    """Cumulative sums along the last axis; a block's sum is the last of them.

    Searches and sums agree but for rounding, since a compiler may add in another order; _search allows for that.
    """
    return values.cumsum(-1, dtype=torch.float64)


def _sum_all(parents: Tensor, children: Tensor) -> None:
    parents.flatten(1)[:, : children.shape[1]] = _running(children)[..., -1]


def _search(sums: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Finds where running sums (K, FAN_OUT) first exceed targets (K, T), and what is left of the targets.

    If rounding has led a target beyond the end, the last value that adds to the sum is taken.
    """
    last = torch.searchsorted(sums, sums[:, -1:].contiguous())
    index = torch.searchsorted(sums, target, right=True).minimum(last)
    before = torch.where(index > 0, sums.gather(1, (index - 1).clamp(min=0)), 0)
    return index, target - before
