"""How the build says no."""

from __future__ import annotations

from keep_agent.errors import KeepError


class Refused(KeepError):
    """An action that fails: ``lastActionSuccess`` is false. The four codes that the client raises for are below."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.message, self.code = message, code


def thrown(kind: str, message: str) -> Refused:
    """Return a failure that is an exception inside the build: its text gets the type in front and a trace behind."""
    return Refused(f"{kind}: {message}. trace: none, this is a stand-in")


def out_of_range(message: str) -> Refused:
    return thrown("ArgumentOutOfRangeException", message)


def unknown_id(object_id: str) -> Refused:
    return thrown("ArgumentException", f"objectId: {object_id} is not the objectId on any object in the scene!")


def unseen() -> Refused:
    return thrown("NullReferenceException", "Target object not found within the specified visibility")


def unknown_action(name: str) -> Refused:
    return Refused(f"Invalid action: {name}", "InvalidAction")


def missing_arguments(action: str, names: list[str]) -> Refused:
    return Refused(f"action: {action} is missing the following arguments: {','.join(names)}", "MissingArguments")


def unknown_arguments(action: str, wrong: list[str], known: list[str], given: list[str]) -> Refused:
    lines = (
        f'Action: "{action}" called with invalid argument(s): ' + ", ".join(f"'{name}'" for name in wrong),
        f"Expected arguments: {', '.join(known)}",
        f"Your arguments: {', '.join(given)}",
        f"Valid ways to call {action}: ({', '.join(known)})",
    )
    return Refused("".join(f"\n\t{line}" for line in lines), "InvalidArgument")
