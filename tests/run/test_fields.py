"""Every field of the configuration changes what is learned, or a named test covers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import helpers
import t3d
from run_folders import everything, folder_of, run, weights
from t3d.config import Config, TD3Config, TD7Config, flat
from t3d.config.fields import declared_types, known_settings
from t3d.events import Note

CATEGORICAL = {"td3.critic_loss": "categorical", "td3.value_low": -20, "td3.value_high": 10}
COSINE = {"td3.lr_schedule": "cosine", "td3.lr_updates": 100}
TD7: dict[str, Any] = {  # small, in a world whose episodes end; what the tests have for TD3 does not count for it
    **{"algo": "td7", "env.id": "uneven:Uneven", "random_steps": 60, "td3": vars(TD3Config()), "total_steps": 400},
    **{"td7.batch_size": 8, "td7.embedding": 6, "td7.encoder_hidden": 7},
    **{"td7.actor_hidden": [9, 8], "td7.critic_hidden": [8, 7]},
}
NEEDS: dict[str, dict[str, Any]] = {  # fields that do nothing, or are refused, without others
    "noise.final_noise": {"noise.decay_steps": 200},
    "td3.drop_highest": {"td3.critics": 5, "td3.aggregate": "truncated"},
    **{f"td3.value_{what}": CATEGORICAL for what in ("low", "high", "bins")},
    **{f"td3.lr_{what}": COSINE for what in ("schedule", "final", "updates")},
    "replay.priority_exponent": {"replay.sampling": "proportional"},
    "replay.importance_exponent": {"replay.sampling": "proportional"},
    "replay.importance_updates": {"replay.sampling": "proportional"},
    **{f"td7.{name}": TD7 for name in vars(TD7Config())},
    "td7.assess_episodes": {**TD7, "td7.assess_after": 20},
}
COVERED = {
    "replay.frames_on_disk": "data/test_frames.py::test_a_file_is_memory",
    "seeds": "run/test_run.py::test_same_seed_same_bits_other_seed_other_bits",
    "sweep": "run/test_sweeps.py::test_a_member_is_the_single_run_with_its_values_and_seed_to_the_last_bit",
    "total_steps": "run/test_run.py::test_a_run_ends_on_the_step_and_evaluates_there",
    "device": "run/test_placement.py::test_cuda_is_refused_where_there_is_none",
    "threads": "run/test_placement.py::test_threads_are_set_and_recorded",
    "algo": "algo/test_rules.py::test_a_rule_from_a_file_trains_says_why_it_is_eager_and_resumes_to_the_last_bit",
    "engine": "algo/test_engines.py::test_every_engine_trains_and_is_recorded",
    "tf32": "algo/test_engines.py::test_tf32_is_a_choice",
    "preset": "app/test_cli.py::test_settings_come_from_defaults_preset_file_and_flags_in_this_order",
    "actors": "actors/test_actors.py::test_actors_that_take_turns_with_the_learner_are_one_process_to_the_last_bit",
    "ray_address": "actors/test_ray_cluster.py::test_with_the_token_it_works_without_a_word",
    "ray_cpus": "actors/test_ray.py::test_a_node_that_joins_gets_actors_that_wait_for_it",
    **{
        f"start_{name}": f"run/test_starting_from.py::{test}"
        for name, test in {
            "from": "test_a_run_starts_with_all_that_was_learned",
            "seed": "test_a_run_starts_with_all_that_was_learned",
            "replay": "test_the_replay_comes_along_and_learning_starts_at_once",
            "actor_after": "test_an_actor_from_a_file_rests_until_its_critics_have_learned",
        }.items()
    },
    "max_ahead": "actors/test_governor.py::test_actors_stay_within_max_ahead",
    "env.hang_seconds": "actors/test_actor_faults.py::test_a_fault_is_seen_and_the_actor_begun_anew",
    "noise.per_env": "actors/test_actor_runs.py::test_a_ladder_of_noise",
    **{
        f"td3.{name}": "algo/test_pixels.py::test_every_setting_for_images_changes_what_is_learned"
        for name in ("encoder_channels", "encoder_strides", "encoder_features", "image_shift")
    },
    "env.id": "world/test_world.py::test_environment_by_id_module_id_and_callable",
    "env.name": "app/test_session.py::test_a_name_may_be_given",
    "env.num_envs": "run/test_run.py::test_environments_are_closed_whatever_happens",
    "env.pixels": "world/test_rendered_images.py::test_any_environment_that_renders_can_be_observed_as_images",
    "env.camera": "world/test_rendered_images.py::test_cameras_by_name_and_number",
    "env.frame_stack": "world/test_frame_stacks.py::test_stacks_equal_a_list_of_frames",
    "env.wrappers": "run/test_conditions.py::test_wrappers_apply_in_their_order",
    "eval.env": "run/test_conditions.py::test_the_first_set_alone_and_arguments_of_evaluations_are_the_same_evaluation",
    "eval.every_steps": "run/test_run.py::test_a_run_ends_on_the_step_and_evaluates_there",
    "eval.max_steps": "run/test_run.py::test_an_environment_that_never_ends_is_cut_in_evaluation",
    "eval.seed": "run/test_going_on.py::test_all_seeds_and_runs_are_evaluated_on_the_same_starts",
    "eval.episodes": "run/test_run.py::test_a_run_ends_on_the_step_and_evaluates_there",
    "env.bad_values": "world/test_bad_values.py::test_a_bad_value_never_reaches_a_parameter",
    "checkpoint.every_steps": "run/test_resume.py::test_a_resumed_run_equals_a_straight_one",
    "log.diagnose_every_steps": "run/test_diagnostics.py::test_a_run_is_the_same_with_and_without_diagnostics",
    "log.every_steps": "run/test_run.py::test_the_first_update_comes_after_the_last_random_step",
    "record_every": "run/test_recording.py::test_every_third_evaluation_is_recorded_also_after_a_resume",
    "sinks": "sinks/test_sinks.py::test_their_own_readers_find_what_the_log_holds",
    "env.metrics": "run/test_metrics_of_episodes.py::test_numbers_are_reduced_over_the_steps_of_an_episode",
    "eval.best_by": "run/test_metrics_of_episodes.py::test_the_best_is_what_the_user_says",
    "stop_when": "run/test_metrics_of_episodes.py::test_a_run_ends_after_three_evaluations_in_a_row_and_is_over",
    "keep_policies": "run/test_metrics_of_episodes.py::test_policies_are_kept_at_every_multiple_of_so_many_steps",
    "run.root": "run/test_run.py::test_two_runs_never_share_a_folder",
    "run.name": "run/test_run.py::test_two_runs_never_share_a_folder",
}


def other_value(name: str) -> Any:
    """A value that is not the default, as declared: the extreme one, the next of the choices, or the opposite."""
    section, _, last = name.rpartition(".")
    kind: Any = type(getattr(Config(), section)) if section else Config
    choices, default = get_args(declared_types(kind)[last]), flat(Config())[name]
    if (extreme := known_settings(Config)[name].get("extreme")) is not None:
        return extreme
    return (not default) if isinstance(default, bool) else choices[1]


CHANGES = {name: other_value(name) for name in flat(Config()) if name not in COVERED}


def learned(tmp_path: Path, changes: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The weights after a short run with some fields changed."""
    nested: dict[str, Any] = {}
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = value
    events = run(helpers.small_config(engine="eager", **nested), tmp_path)
    if nested.get("algo") != "td7":
        return weights(events)
    parts = [value.ravel() for name, value in everything(folder_of(events)).items() if name.startswith("learner/")]
    return np.concatenate(parts)  # all that it learns: what is shipped is a checkpoint, which may not have changed yet


@pytest.fixture(scope="module")
def unchanged() -> dict[str, np.ndarray[Any, Any]]:
    """What is learned without the changes, by what these need; filled where it is asked for."""
    return {}


@pytest.mark.parametrize("key", CHANGES)
def test_every_field_of_the_algorithm_changes_what_is_learned(
    tmp_path: Path, key: str, unchanged: dict[str, np.ndarray[Any, Any]]
) -> None:
    needed = NEEDS.get(key, {})
    if (name := str(needed)) not in unchanged:
        unchanged[name] = learned(tmp_path, needed)
    assert not np.array_equal(learned(tmp_path, {**needed, key: CHANGES[key]}), unchanged[name])


def test_lap_changes_what_is_learned(tmp_path: Path) -> None:
    huber = {"td3.critic_loss": "huber"}
    assert not np.array_equal(learned(tmp_path, {**huber, "replay.sampling": "lap"}), learned(tmp_path, huber))


def test_targets_beyond_the_support_are_told_once(tmp_path: Path) -> None:
    cfg = helpers.small_config(td3={"critic_loss": "categorical", "value_low": 5, "value_high": 6})
    notes = [event.text for event in t3d.train(cfg) if isinstance(event, Note)]
    assert len([text for text in notes if "of the targets are not from td3.value_low=5" in text]) == 1, notes
    wide = helpers.small_config(td3={"critic_loss": "categorical", "value_low": -500, "value_high": 500})
    assert not [event for event in t3d.train(wide) if isinstance(event, Note) and "targets" in event.text]


def test_every_other_field_is_covered_by_a_named_test() -> None:
    assert {*COVERED} < {*flat(Config())}
    for place in COVERED.values():
        file, test = place.split("::")
        assert f"def {test}(" in (Path(__file__).parents[1] / file).read_text(encoding="utf-8"), place
