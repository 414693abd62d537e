"""Figures about a server, in the text that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """Counts values by upper bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        """Yields it as Prometheus reads it: each bucket holds the smaller ones too."""
        total = 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.sum:.9g}"
        yield f"{name}_count {total}"


class Metrics:
    """What a server has answered, and how quickly."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()  # by path and status
        self.seconds = Histogram(SECONDS)  # of requests for an action
        self.rows = Histogram(ROWS)  # observations of those that got one

    def count(self, path: str, status: int) -> None:
        """Counts an answer."""
        self.answers[path, status] += 1

    @property
    def acted(self) -> int:
        """Requests that got an action."""
        return sum(self.rows.counts)

    def text(self, gauges: Mapping[str, tuple[str, float]], facts: Mapping[str, str]) -> str:
        """Writes everything, with further figures and their meanings, and facts about the policy."""
        lines = ["# HELP t3d_requests_total Answers by path and status.", "# TYPE t3d_requests_total counter"]
        for (path, status), count in sorted(self.answers.items()):
            lines.append(f't3d_requests_total{{path="{path}",status="{status}"}} {count}')
        histograms = (
            ("t3d_act_seconds", "Seconds from a request for an action to its answer.", self.seconds),
            ("t3d_act_rows", "Observations of a request that got actions.", self.rows),
        )
        for name, meaning, histogram in histograms:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} histogram", *histogram.lines(name)]
        for name, (meaning, value) in gauges.items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", f"{name} {value:.17g}"]
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in facts.items())
        lines += ["# HELP t3d_policy_info The policy.", "# TYPE t3d_policy_info gauge"]
        lines += [f"t3d_policy_info{{{labels}}} 1", ""]
        return "\n".join(lines)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
