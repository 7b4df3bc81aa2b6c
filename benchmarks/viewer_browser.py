"""Headless Chromium that can only reach this machine, and a server of the viewer for it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from urllib.request import urlopen

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from benchmarks.server import free_port
from tests.waiting import PATIENCE

CHROMIUM, DRIVER = ("chromium", "chromium-browser", "google-chrome"), "chromedriver"
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root in a container cannot use the sandbox
    "--disable-gpu",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)


def chromium() -> str | None:
    """Return the path of Chromium, or None unless it and its driver are installed."""
    return next(filter(None, map(which, CHROMIUM)), None) if which(DRIVER) else None


@contextmanager
def browser(width: int = 1440, height: int = 900) -> Iterator[webdriver.Chrome]:
    """Start Chromium, recording its console and network logs."""
    options = Options()
    options.binary_location = chromium() or ""
    for flag in (*FLAGS, f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(which(DRIVER)))
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    try:
        driver.set_script_timeout(PATIENCE)
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        yield driver
    finally:
        driver.quit()


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """Run ``keep-agent view`` in a separate process; yield the address of its list of runs."""
    port = free_port()
    command = [sys.executable, "-m", "keep_agent.cli", "view", str(root), "--no-browser", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}/viewer"
    try:
        _await(address, process)
        yield address
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _await(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            urlopen(f"{address}/data/episodes", timeout=PATIENCE).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
