"""One torch thread per test process: tests run side by side, and results must not depend on the machine's cores."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
