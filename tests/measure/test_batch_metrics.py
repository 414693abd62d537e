"""Figures of a batch, each against a closed form, and members that share nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from t3d import measure


def test_critics_that_agree_have_no_disagreement_and_others_half_their_distance() -> None:
    q = torch.tensor([[[1.0, 2.0], [1.0, 2.0]], [[0.0, 1.0], [4.0, 7.0]]])  # two members, critics and transitions
    assert measure.disagreement(q).tolist() == [0, (2 + 3) / 2]
    assert measure.disagreement(q[:, :1]).tolist() == [0, 0], "one critic"


def test_the_share_of_saturated_components() -> None:
    pi = torch.tensor([[[0.995, 0.5], [-1.0, 0.98]], [[0.0, 0.1], [0.2, -0.999]]])
    assert measure.saturated(pi).tolist() == [0.5, 0.25]


def test_an_action_at_the_same_limit_in_all_states_is_stuck() -> None:
    ones = torch.ones(101)
    either = torch.where(torch.arange(101) % 2 == 0, 1.0, -1.0)  # full force, but not always the same way
    almost = ones.clone()
    almost[50] = 0.5  # in one state it is not
    first = torch.stack([-0.995 * ones, either, almost, 0 * ones], dim=-1)
    assert measure.stuck_actions(torch.stack([first, ones.unsqueeze(1).expand(101, 4)])).tolist() == [0.25, 1.0]


def test_constant_observations_are_named_for_each_member() -> None:
    s = torch.randn(2, 30, 4, generator=torch.Generator().manual_seed(0))
    s[0, :, 2], s[1, :, 0], s[1, :, 3] = 5.0, 0.0, -1.0
    assert measure.constant_observations(s) == [[2], [0, 3]]
    assert measure.constant_observations(s[..., :0]) == [[], []]


def test_quantiles_of_equally_spaced_values() -> None:
    values = torch.stack([torch.arange(101.0), 10 * torch.arange(101.0)]).view(2, 1, 101)
    found = measure.quantiles(values.flip(-1), (0.05, 0.5, 0.95))
    assert found[0] == pytest.approx([5, 50, 95]) and found[1] == pytest.approx([50, 500, 950])


@pytest.mark.parametrize("added", [1, 7, 10, 11, 38])
def test_ages_are_those_of_a_ring(added: int) -> None:
    ring: list[int] = [-1] * 10
    for number in range(added):
        ring[number % 10] = number
    rows = torch.arange(min(added, 10)).unsqueeze(0)
    expected = [added - 1 - ring[row] for row in rows[0].tolist()]
    assert measure.ages(rows, [added], 10).tolist() == [expected]


def test_a_histogram_counts_every_value_in_its_bin() -> None:
    values = np.array([[-1.0, -0.95], [0.0, 1.0], [0.05, 0.0]])
    counts = measure.histogram(values, -1, 1)
    assert len(counts) == 20 and sum(counts) == 6
    assert (counts[0], counts[10], counts[19]) == (2, 3, 1)
    assert sum(measure.histogram(np.full(5, 3.0), 3, 3)) == 5, "all equal"
    almost = np.array([1.0, np.nextafter(np.float32(1), np.float32(2))], np.float32)
    assert sum(measure.histogram(almost, *almost.tolist())) == 2, "almost equal"
