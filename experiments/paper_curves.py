"""Writes experiments/paper_curves.csv from a clone of the authors' repository: python experiments/paper_curves.py CLONE

Their learning curves have ten seeds and an evaluation every 5,000 steps, on v1 of the environments. Deviations are over
seeds, with n - 1. `mean_of_three` and `std_of_three` are of each seed's mean of three evaluations, 50,000 steps apart,
of which the last is the row's: what experiments/variants.py calls the return at the end.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

EVERY, APART = 5_000, 50_000  # steps between their evaluations, and between those of experiments/variants.py
LAST = 3
TARGET = Path(__file__).parent / "paper_curves.csv"


def main(clone: Path) -> None:
    with TARGET.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["env", "step", "seeds", "mean", "std", "min", "max", "mean_of_three", "std_of_three"])
        for folder in sorted((clone / "learning_curves").iterdir()):
            curves = np.array([np.load(one, allow_pickle=False) for one in sorted(folder.glob("TD3_*.npy"))])
            if not len(curves):
                continue
            for at in range(curves.shape[1]):
                now = curves[:, at]
                before = at - np.arange(LAST) * APART // EVERY
                three = curves[:, before].mean(axis=1) if before[-1] >= 0 else np.full(len(curves), np.nan)
                row = [now.mean(), now.std(ddof=1), now.min(), now.max(), three.mean(), three.std(ddof=1)]
                cells = ["" if np.isnan(value) else round(float(value), 2) for value in row]
                writer.writerow([folder.name.removesuffix("2d"), at * EVERY, len(curves), *cells])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
