"""Failed actions of the stand-in for AI2-THOR, with AI2-THOR's own messages."""

from __future__ import annotations

from keep_agent.errors import KeepError


class Refusal(KeepError):
    """Failed action: ``lastActionSuccess`` is false. For codes such as "InvalidAction" ai2thor raises ValueError."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.message, self.code = message, code


def refuse_if(condition: bool, message: str, code: str = "") -> None:
    """Raise a Refusal if the condition holds."""
    if condition:
        raise Refusal(message, code)


def exception(kind: str, message: str) -> Refusal:
    """Return the failure for an exception; as in AI2-THOR, its text has the exception's type, message and trace."""
    return Refusal(f"{kind}: {message}. trace: none, this is a stand-in")


def out_of_range(message: str) -> Refusal:
    return exception("ArgumentOutOfRangeException", message)


def missing_arguments(action: str, *names: str) -> Refusal:
    return Refusal(f"action: {action} is missing the following arguments: {','.join(names)}", "MissingArguments")
