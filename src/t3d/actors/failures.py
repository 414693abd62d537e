"""How a worker reports, in plain values, what has ended it, and what its parent makes of that."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from t3d.errors import EnvironmentFailed, UserError, as_sentence
from t3d.types import Fault
from t3d.world.guard import BadValue


def described(error: Exception) -> dict[str, Any]:
    """Describes an error in a worker: a bad value, a mistake of the user, or a crash and where it happened."""
    if isinstance(error, BadValue):
        return {"bad_value": error.fault, "where": error.where, "member": error.member}
    if isinstance(error, UserError):
        return {"user_error": str(error)}
    own = not isinstance(error, EnvironmentFailed)
    where = traceback.extract_tb((error if own else error.__cause__ or error).__traceback__)[-1]
    return {"crash": f"{as_sentence(error)} ({Path(where.filename).name}, line {where.lineno})"}


def reported(error: Exception) -> dict[str, Any]:
    """Describes an error that is being handled, and prints the traceback of a crash."""
    failure = described(error)
    if "crash" in failure:
        traceback.print_exc()
    return failure


def user_error(message: dict[str, Any]) -> UserError | None:
    """Returns the error in a worker's message that the user must fix, if there is one."""
    if "bad_value" in message:
        error = BadValue(message["where"], Fault(*message["bad_value"]))
        error.member = message["member"]
        return error
    return UserError(message["user_error"]) if "user_error" in message else None
