"""Error handlers: turn every error into an HTTP status, a type and a message, without server internals."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, ClassVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keep_agent.errors import CapacityError, KeepError, ModelError, StaleError, StorageError, TooLongError

# below these paths, errors have the format of Anthropic's or OpenAI's API
ANTHROPIC_PATH = "/v1/messages"
OPENAI_PATHS = ("/v1/chat/", "/v1/models", "/v1/responses", "/v1/completions", "/v1/embeddings")
MAX_MESSAGE = 600  # maximum characters of a message, which may quote a long value of the request
MAX_FIELD_NAME = 120  # maximum characters of a field's name in a message, since a client may send any name
CLOSE_HEADERS = {"Connection": "close"}
RESPONSE_STARTS = ("http.response.start", "websocket.accept", "websocket.close", "websocket.http.response.start")
log = logging.getLogger(__name__)


class ErrorText(BaseModel):
    type: str
    message: str


class ErrorAnswer(BaseModel):
    """Body of every error response."""

    error: ErrorText


class Refused(KeepError):
    """A rejected request. Each subclass is one reason, with its HTTP status."""

    status: ClassVar[int] = 400
    headers: Mapping[str, str] = {}


class Unauthorized(Refused):
    status = 401
    headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}


class Forbidden(Refused):
    status = 403


class NotFound(Refused):
    status = 404


class TooSlow(Refused):
    status = 408
    headers: Mapping[str, str] = CLOSE_HEADERS


class Conflict(Refused):
    status = 409


class TooLarge(Refused):
    status = 413


class Unavailable(Refused):
    """A request that the server cannot serve now; a later retry may succeed."""

    status = 503


class Busy(Refused):
    """A request beyond the maximum number of concurrent ones."""

    status = 429

    def __init__(self, message: str, seconds: int) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": str(seconds)}


# CapacityError is 507, not 413: a limit of the server is reached, such as its memory, disk or number of agents
STATUS: Mapping[type[KeepError], int] = {
    KeepError: 400,
    StaleError: 409,
    CapacityError: 507,
    TooLongError: 413,
    StorageError: 507,
    ModelError: 500,  # not 503, since a retry would fail again
}
ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 500: "api_error", 503: "overloaded_error", 507: "overloaded_error",
}  # fmt: skip
DOCUMENTED = (400, 401, 403, 404, 405, 408, 409, 413, 422, 429, 500, 503, 507)
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": HTTPStatus(status).phrase} for status in DOCUMENTED
}
RETRY_AFTER = "5"  # Retry-After of 503, in seconds
SHUTTING_DOWN = "the server is shutting down; send the request again after its restart"
NO_DESCRIPTORS = "the server has no file descriptor left: send the request again, close connections, or raise ulimit -n"
INTERNAL_ERROR = "internal error; the server's log has the details"


def status_of(error: KeepError) -> int:
    if isinstance(error, Refused):
        return error.status
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def request_error(error: Exception) -> KeepError | None:
    """Return the KeepError to answer with; None for an error in the server itself."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            return Unavailable(NO_DESCRIPTORS)
        cause = cause.__cause__ or cause.__context__
    return error if isinstance(error, KeepError) else None


def error_data(path: str, error: Exception) -> dict[str, Any]:
    """Return an error as JSON with its HTTP status as a field, for responses that have begun and for websockets."""
    status, kind, message = 500, "InternalError", INTERNAL_ERROR
    if (refusal := request_error(error)) is not None:
        status, kind, message = status_of(refusal), type(refusal).__name__, str(refusal)
    return {**_body(path, status, kind, message), "status": status}


def _body(path: str, status: int, kind: str, message: str) -> dict[str, Any]:
    if len(message) > MAX_MESSAGE:
        message = f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 2 :]}"
    if path.startswith(ANTHROPIC_PATH):
        kind = ANTHROPIC_TYPES.get(status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}
    unused = {"param": None, "code": None} if path.startswith(OPENAI_PATHS) else {}
    return {"error": {"type": kind, "message": message, **unused}}


def error_response(path: str, error: KeepError, closing: bool = False) -> Response:
    """Return the response to a KeepError. ``closing``: the connection ends after the response."""
    status, kind = status_of(error), type(error).__name__
    headers = {**(error.headers if isinstance(error, Refused) else {}), **(CLOSE_HEADERS if closing else {})}
    if status == 503:
        headers["Retry-After"] = RETRY_AFTER
    if status >= 500:
        log.warning("%s: %s", kind, error)
    return JSONResponse(_body(path, status, kind, str(error)), status, headers)


def any_error_response(scope: Scope, error: Exception) -> Response:
    path, headers = scope["path"], None
    if isinstance(error, RequestValidationError):
        status, kind, message = 422, "ValidationError", validation_message(error.errors())
    elif isinstance(error, HTTPException):
        status, message, headers = error.status_code, str(error.detail), error.headers
        kind = HTTPStatus(status).phrase.title().replace(" ", "")
    elif (refusal := request_error(error)) is not None:
        return error_response(path, refusal)
    else:
        log.error("%s %s", scope.get("method", scope["type"]), path, exc_info=error)
        status, kind, message = 500, "InternalError", INTERNAL_ERROR
    return JSONResponse(_body(path, status, kind, message), status, headers)


def install(app: FastAPI) -> None:
    """Install handlers for KeepError, HTTPException and invalid requests; `ErrorMiddleware` answers all others."""

    async def handle(connection: HTTPConnection, error: Exception) -> Response:
        return any_error_response(connection.scope, error)

    for kind in (KeepError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, handle)


def validation_message(errors: Sequence[Mapping[str, Any]]) -> str:
    """Return fields and reasons of validation errors, without the values sent."""
    pairs = ((".".join(map(str, error["loc"]))[:MAX_FIELD_NAME], error["msg"]) for error in errors[:5])
    more = f" (and {len(errors) - 5} more)" if len(errors) > 5 else ""
    return "; ".join(": ".join(filter(None, pair)) for pair in pairs) + more


class ErrorMiddleware:
    """ASGI middleware around all but the metrics: answers uncaught errors, and requests that a shutdown cancels."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = has_begun or message["type"] in RESPONSE_STARTS
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect as error:
            log.info("%s: %s", scope["path"], error)
        except asyncio.CancelledError:
            if scope["type"] == "lifespan":
                raise
            if not has_begun:  # otherwise uvicorn closes the connection
                await error_response(scope["path"], Unavailable(SHUTTING_DOWN))(scope, receive, send)
        except Exception as error:
            if scope["type"] == "lifespan" or has_begun:
                raise  # closes the connection, so that a truncated response is not mistaken for a complete one
            await any_error_response(scope, error)(scope, receive, send)
