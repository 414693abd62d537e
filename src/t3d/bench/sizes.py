"""The sizes that benchmarks take unless they are told others."""

from __future__ import annotations

import numpy as np

from t3d.policy.spec import Part, Spec

HALF_CHEETAH = Spec((Part((), (17,), 0, 17),), (6,), -np.ones(6), np.ones(6))
