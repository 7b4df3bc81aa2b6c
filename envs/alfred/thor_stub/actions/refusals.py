"""Refusals in the build's own words."""

from __future__ import annotations

from keep_agent.errors import KeepError


class Refusal(KeepError):
    """An action that fails: ``lastActionSuccess`` is false. The client raises errors for the four codes below."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.message, self.code = message, code


def refuse_if(condition: bool, message: str, code: str = "") -> None:
    """Raise a Refusal if the condition holds."""
    if condition:
        raise Refusal(message, code)


def exception(kind: str, message: str) -> Refusal:
    """Return a failure that is an exception in the build: the type comes before its message, a trace after it."""
    return Refusal(f"{kind}: {message}. trace: none, this is a stand-in")


def out_of_range(message: str) -> Refusal:
    return exception("ArgumentOutOfRangeException", message)


def unknown_id(object_id: str) -> Refusal:
    return exception("ArgumentException", f"objectId: {object_id} is not the objectId on any object in the scene!")


def unseen() -> Refusal:
    return exception("NullReferenceException", "Target object not found within the specified visibility")


def unknown_action(name: str) -> Refusal:
    return Refusal(f"Invalid action: {name}", "InvalidAction")


def missing_arguments(action: str, names: list[str]) -> Refusal:
    return Refusal(f"action: {action} is missing the following arguments: {','.join(names)}", "MissingArguments")


def unknown_arguments(action: str, wrong: list[str], known: list[str], arguments: list[str]) -> Refusal:
    lines = (
        f'Action: "{action}" called with invalid argument(s): ' + ", ".join(f"'{name}'" for name in wrong),
        f"Expected arguments: {', '.join(known)}",
        f"Your arguments: {', '.join(arguments)}",
        f"Valid ways to call {action}: ({', '.join(known)})",
    )
    return Refusal("".join(f"\n\t{line}" for line in lines), "InvalidArgument")
