"""What panels.json says of the charts fits what runs report."""

from __future__ import annotations

import json
from importlib import resources

from t3d.alarms.symptoms import SYMPTOMS
from t3d.store.metrics import LISTED

PANELS = json.loads((resources.files("t3d.insight") / "panels.json").read_text("utf-8"))
WITHOUT_CURVE = {"constant-observation"}


def test_every_kind_of_alarm_has_a_chart_that_shows_its_reason() -> None:
    shown = {kind for panel in PANELS for kind in panel.get("alarms", [])}
    assert shown == {symptom.kind for symptom in SYMPTOMS} - WITHOUT_CURVE


def test_every_quantile_has_a_name_in_words() -> None:
    named = {metric: [*panel["entries"]] for panel in PANELS if "entries" in panel for metric in panel["metrics"]}
    assert named == {metric: [*LISTED[metric]] for metric in ("td_quantiles", "sampled_age")}
