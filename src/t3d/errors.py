"""The one exception whose message is meant for the person at the keyboard."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake the user can fix: the message is a whole sentence and says how. The command line exits with code 2."""


class NothingLeft(UserError):
    """The run is already where it is asked to go."""


class StoppedEarly(UserError):
    """The run was asked to stop before it had begun to go on; nothing has changed."""


class NobodyLeft(UserError):
    """Every worker process has failed too often; the run is saved as it is."""


class OwnSignal(BaseException):
    """What T3D itself raises through an environment's code: no environment may catch it, or be blamed for it."""


class EnvironmentFailed(Exception):
    """The user's environment raised something, the cause of this; it is never taken for an error of our own."""

    def __init__(self, where: str, raised: BaseException) -> None:
        super().__init__(f"{where}: {what_happened(raised)}")


def what_happened(raised: BaseException) -> str:
    """What an environment did: its exception, or that it wanted to end the program."""
    if isinstance(raised, SystemExit):
        return f"the environment called sys.exit({'' if raised.code is None else repr(raised.code)})"
    return f"the environment raised {type(raised).__name__}{f': {raised}' if str(raised) else ''}"


class Diverged(UserError):
    """Learning has run away: a loss or an action is no longer a finite number."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"training diverged: {what}; lower td3.critic_lr and td3.actor_lr, or scale the rewards down "
            "(the run's folder keeps the last sound policy)"
        )


def as_sentence(error: BaseException) -> str:
    """Sentences as they are, other errors with their kind."""
    return str(error) if isinstance(error, EnvironmentFailed | UserError) else f"{type(error).__name__}: {error}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint like ', did you mean tau?', or nothing when no known word comes near enough."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.55)
    return f", did you mean {near[0]}?" if near else ""
