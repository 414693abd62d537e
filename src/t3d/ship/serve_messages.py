"""What clients of a served policy ask and are answered: observations and actions, as JSON or as bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3d.errors import UserError
from t3d.policy.acting import Controller, LoadedPolicy
from t3d.policy.observations import InvalidValue, batch_size, inside
from t3d.policy.spec import Image, Part, Spec
from t3d.web import RequestRefused

FIELDS = ("observation", "previous_action", "reset")
LONGEST_NUMBER = 32  # characters of a float64 in JSON, with the brackets and spaces around it
LEAST_BYTES, MOST_BYTES = 2**16, 2**23  # of the limit on a message that follows from the batch; chosen


class Question(NamedTuple):
    """What a message asks."""

    observation: Any  # arrays, as the environment returns them; None if there is none
    rows: int  # observations in it; 1 for a single one
    reset: bool | list[bool] = False  # an episode starts; a list: for each observation
    previous: Any = None  # action, if the policy limits how much actions change


class Messages:
    """Reads and writes the messages about the observations and actions of one policy."""

    def __init__(self, spec: Spec, most_rows: int) -> None:
        self.spec, self.most_rows = spec, most_rows
        self.parts: list[Part | Image] = [*spec.observation, *spec.images]
        self.layout = np.dtype([(str(number), *_binary(part)) for number, part in enumerate(self.parts)])
        self._kinds = [self.layout[number] for number in range(len(self.parts))]
        self.action_dtype = np.dtype(spec.action_dtype).newbyteorder("<")

    @property
    def most_bytes(self) -> int:
        """What a full batch takes in JSON, within reason."""
        numbers = sum(math.prod(kind.shape) for kind in self._kinds)
        previous = self.spec.action_size if self.spec.max_action_change else 0
        return min(max(LONGEST_NUMBER * self.most_rows * (numbers + previous), LEAST_BYTES), MOST_BYTES)

    def from_json(self, content: bytes | str) -> Question:
        """Reads {"observation": ...}, with nested lists as the environment nests arrays."""
        try:
            fields = json.loads(content)
        except RecursionError:
            raise RequestRefused(400, "the JSON is nested too deeply") from None
        except ValueError as error:  # UnicodeDecodeError and numbers of thousands of digits too
            raise RequestRefused(400, f"the body is not JSON: {error}"[:200]) from None
        if not isinstance(fields, dict) or not fields:
            raise RequestRefused(400, 'the JSON must be an object like {"observation": [...]}')
        if unknown := [name for name in fields if name not in FIELDS]:
            raise RequestRefused(400, f"unknown field {unknown[0]!r:.60}; a request has {', '.join(FIELDS)}")
        reset = fields.get("reset", False)
        if not all(isinstance(flag, bool) for flag in (reset if isinstance(reset, list) else [reset])):
            raise RequestRefused(400, "reset must be true or false, or a list with one of them for each observation")
        if "observation" not in fields:
            if isinstance(reset, list):
                raise RequestRefused(400, "reset as a list, one value for each observation, needs the observations too")
            return Question(None, 0, reset, fields.get("previous_action"))
        try:
            observation = _nested([(part.path, _array(fields["observation"], part)) for part in self.parts])
            rows = batch_size(observation, self.spec)
        except InvalidValue as error:
            raise RequestRefused(422, str(error)) from None
        count = 1 if rows is None else rows
        if isinstance(reset, list) and len(reset) != count:
            raise RequestRefused(422, f"reset has {len(reset)} values, and there are {count} observations")
        return Question(observation, count, reset, fields.get("previous_action"))

    def from_bytes(self, content: bytes) -> Question:
        """Reads observations one after the other, each laid out as `layout`."""
        size = self.layout.itemsize
        if not content or len(content) % size:
            raise RequestRefused(
                422, f"an observation has {size} bytes, so {len(content)} bytes are no whole number of them; see /info"
            )
        records = np.frombuffer(content, self.layout)
        observation = _nested([(part.path, records[str(number)]) for number, part in enumerate(self.parts)])
        return Question(observation, len(records))

    def written(self, actions: NDArray[Any], *, as_json: bool) -> bytes:
        if as_json:
            return json.dumps({"action": actions.tolist()}, allow_nan=False).encode()
        return actions.astype(self.action_dtype, copy=False).tobytes()

    def example(self) -> bytes:
        zeros = [(part.path, np.resize(part.first_choice or 0, part.shape)) for part in self.spec.observation]
        fields = {"observation": _listed(_nested(zeros))}
        if self.spec.max_action_change:
            fields["previous_action"] = np.zeros(self.spec.action_shape, np.int64).tolist()
        return json.dumps(fields).encode()

    def described(self) -> dict[str, Any]:
        """Says what an observation and an action are, for clients that are programs."""
        spec = self.spec
        arrays = [
            {"name": part.name, "path": part.path, "shape": kind.shape, "type": str(kind.base.newbyteorder("="))}
            for part, kind in zip(self.parts, self._kinds, strict=True)
        ]
        return {
            "observation": {"arrays": arrays, "bytes": self.layout.itemsize, "frames": spec.stack},
            "action": {
                "shape": spec.action_shape,
                "type": str(np.dtype(spec.action_dtype)),
                "bytes": spec.action_size * self.action_dtype.itemsize,
                "low": spec.action_low.reshape(spec.action_shape).tolist(),
                "high": spec.action_high.reshape(spec.action_shape).tolist(),
                "max_change": spec.max_action_change,
            },
        }


def actions_of(policy: LoadedPolicy | Controller, question: Question) -> NDArray[Any] | None:
    """Asks the policy, or the controller of a WebSocket; None if the question only starts an episode."""
    try:
        with np.errstate(invalid="ignore"):  # of signalling NaNs, which the policy refuses
            return _controlled(policy, question) if isinstance(policy, Controller) else _alone(policy, question)
    except UserError as error:
        raise RequestRefused(422, str(error)) from None


def _alone(policy: LoadedPolicy, question: Question) -> NDArray[Any]:
    if question.observation is None:
        raise RequestRefused(400, "the request has no observation")
    if question.reset is not False:
        raise RequestRefused(400, "reset is for the WebSocket /ws: a request to /act belongs to no episode")
    if policy.spec.max_action_change and question.previous is None:
        raise RequestRefused(
            422,
            "this policy limits how much actions change, so it takes previous_action too (in JSON); the WebSocket /ws "
            "keeps it for you",
        )
    return policy(question.observation, question.previous)


def _controlled(controller: Controller, question: Question) -> NDArray[Any] | None:
    if question.reset is True:
        controller.reset(question.previous)
    elif question.previous is not None:
        raise RequestRefused(400, 'a WebSocket keeps the previous action itself; send it only with "reset": true')
    if question.observation is not None:
        return controller(question.observation, question.reset if isinstance(question.reset, list) else None)
    if not question.reset:
        raise RequestRefused(400, "the request has no observation")
    return None


def _binary(part: Part | Image) -> tuple[str, tuple[int, ...]]:
    if isinstance(part, Part):
        return "<f4", part.shape
    channels, height, width = part.shape
    return "<f4" if part.is_float else "u1", (height, width, channels) if part.channels_last else part.shape


def _array(observation: Any, part: Part | Image) -> NDArray[Any]:
    """Finds an array in what JSON held; whether it is what the policy takes, the policy itself says."""
    value = inside(observation, part)
    try:
        array = np.asarray(value)
    except ValueError:  # ragged lists
        raise InvalidValue(part.name, f"is {value!r:.60}, not numbers of one shape") from None
    if array.dtype.kind not in "iufb":
        raise InvalidValue(part.name, f"is {value!r:.60}, not numbers")
    if isinstance(part, Part):
        return array
    if part.is_float:
        with np.errstate(over="ignore"):  # what is infinite then, the policy refuses
            return array.astype(np.float32)
    if array.dtype.kind == "f" or (array.size and (array.min() < 0 or array.max() > 255)):
        raise InvalidValue(part.name, "holds other numbers than the whole ones from 0 to 255")
    return array.astype(np.uint8)


def _nested(arrays: Sequence[tuple[tuple[str | int, ...], NDArray[Any]]]) -> Any:
    """An observation of these arrays; parts of a Tuple are found by their number in a dict too."""
    if not arrays[0][0]:
        return arrays[0][1]
    keys = dict.fromkeys(path[0] for path, _ in arrays)
    return {key: _nested([(path[1:], array) for path, array in arrays if path[0] == key]) for key in keys}


def _listed(nested: Any) -> Any:
    if isinstance(nested, dict):
        listed = {key: _listed(value) for key, value in nested.items()}
        return [*listed.values()] if 0 in listed else listed
    return nested.tolist()
