from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from benchmarks.viewer_browser import serving
from tests.keep_agent.viewer.traces import opening, step, write
from tests.sockets import connect
from tests.waiting import PATIENCE

PATHS = ("/", "/viewer", "/viewer/", "/viewer/data/episodes", "/viewer/episode?run=.&episode=e",
         "/viewer/_nicegui_ws/socket.io/?EIO=4&transport=polling", "/viewer/any")  # fmt: skip
SOCKET = "/viewer/_nicegui_ws/socket.io/?EIO=4&transport=websocket"


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    root = tmp_path_factory.mktemp("run")
    write(root, [opening(), step()])
    with serving(root) as address, httpx.Client(base_url=address.removesuffix("/viewer"), timeout=PATIENCE) as client:
        yield client


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Host": "evil.example:8088"}, {"Origin": "http://evil.example"}, {"Origin": "null"},
     {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}],
    ids=str,
)  # fmt: skip
def test_pages_of_other_sites_are_refused(http: httpx.Client, headers: dict[str, str]) -> None:
    for path in PATHS:
        answer = http.get(path, headers=headers)
        assert answer.status_code == 403 and "error" in answer.json()
    if "Host" not in headers:  # the package websockets sends its own Host header
        with pytest.raises(InvalidStatus, match="403"), connect(socket_of(http), additional_headers=headers):
            pass


def test_own_pages_and_programs_are_admitted(http: httpx.Client) -> None:
    port = http.base_url.port
    hosts = (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", "localhost:9000")  # the last one: a tunnel
    for host in hosts:
        headers = {"Host": host, "Origin": f"http://{host}"}
        assert len(http.get("/viewer/data/episodes", headers=headers).json()) == 1
    with connect(socket_of(http), origin=f"http://127.0.0.1:{port}"):
        pass


def test_redirection_keeps_the_query(http: httpx.Client) -> None:
    for path, end in (("/", "/viewer/"), ("/viewer", "/viewer/"), ("/viewer?a=1&b=%C3%A4", "/viewer/?a=1&b=%C3%A4")):
        answer = http.get(path, follow_redirects=True)
        assert answer.status_code == 200 and answer.url.raw_path.decode() == end


def socket_of(http: httpx.Client) -> str:
    return f"ws://127.0.0.1:{http.base_url.port}{SOCKET}"
