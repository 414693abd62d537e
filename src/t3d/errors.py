"""Exceptions, and the sentences that users read about them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec


class UserError(Exception):
    """A problem the user can fix: the message is a sentence that says how. The command line exits with code 2."""


class NothingLeft(UserError):
    """The run has already reached the requested step."""


class StoppedEarly(UserError):
    """The run was asked to stop before it had resumed; nothing has changed."""


class NobodyLeft(UserError):
    """Every worker process has failed too often; the run is saved."""


class FramesNotWritten(UserError):
    """The disk did not take the replay's images, so that transitions that were collected are lost."""


class NotRendered(UserError):
    """An environment drew no image; caused by what its own render() raised, if it did."""


class OwnSignal(BaseException):
    """An exception that T3D raises through an environment's code, which must neither catch it nor be blamed for it."""


class EnvironmentFailed(Exception):
    """The user's environment raised the cause of this exception; it is not an error of T3D."""

    def __init__(self, where: str, raised: BaseException) -> None:
        super().__init__(f"{where}: {what_happened(raised)}")


def what_happened(raised: BaseException) -> str:
    """Describes what an environment raised: an exception, or sys.exit."""
    if isinstance(raised, UserError):
        return str(raised)  # a sentence already, about what T3D itself does to environments
    if isinstance(raised, SystemExit):
        return f"the environment called sys.exit({'' if raised.code is None else text_of(raised.code, repr)})"
    text = text_of(raised)
    return f"the environment raised {type(raised).__name__}{f': {text}' if text else ''}"


def text_of(value: object, convert: Callable[[object], str] = str) -> str:
    """Converts what came from the user's code to text, which that code may have made impossible."""
    try:
        return convert(value)
    except Exception:
        return "(its text cannot be shown)"


class Diverged(UserError):
    """Training diverged: a loss or an action is not finite."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"training diverged: {what}; lower td3.critic_lr and td3.actor_lr, or scale the rewards down "
            "(the run's folder keeps the last valid policy)"
        )
        self.what = what


def as_sentence(error: BaseException) -> str:
    """Returns messages written for users unchanged, those of other errors with their type."""
    text = text_of(error)
    return text if isinstance(error, EnvironmentFailed | UserError) else f"{type(error).__name__}: {text}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns a hint like ', did you mean tau?', or nothing if no known word is close enough."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.65)
    return f", did you mean {near[0]}?" if near else ""


def check_installed(user: str, packages: Sequence[str], extra: str) -> None:
    """Refuses if packages of an extra are missing, which a command or a page needs."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise UserError(f'{user} needs {" and ".join(missing)}; install with: pip install "t3d[{extra}]"')
