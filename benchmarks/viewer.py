"""Speed of the episode viewer on a long trace, in a real browser.

    python -m benchmarks.viewer [--steps N] [--layers N] [--segments N] [--presses N] [--screenshot FILE]

Writes a run of 1,000 steps x 48 layers x 200 segments, serves it as `keep-agent view` does, opens it in headless
Chromium (needs chromium and chromedriver) and presses keys. A press counts from the key event to the first frame
painted after the new step is drawn: ``next`` are arrow keys one after the other, each waiting for the one before, with
the neighbour fetched ahead; ``leap`` are shift and arrow to a step that was not fetched. ``open`` is from the request
to the first step painted, with the trace read already; ``index`` is the server's first look at the trace.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from benchmarks.viewer_browser import browser, serving
from benchmarks.viewer_trace import Size, write_run
from keep_agent.console import make_console
from keep_agent.viewer.runs import Library

WATCH = """
window.presses = [];
document.addEventListener("keydown", (event) => { window.began = event.timeStamp; }, true);
document.querySelector(".keep-viewer").addEventListener("keep-step", () => {
  const began = window.began;
  requestAnimationFrame(() => { const done = new MessageChannel();
    done.port1.onmessage = () => window.presses.push(performance.now() - began); done.port2.postMessage(0); });
});
"""
OPENED = """
const asked = performance.now(); const done = arguments[0];
const look = () => document.querySelector(".keep-viewer .action") ? requestAnimationFrame(() => done(performance.now()))
  : requestAnimationFrame(look);
look();
"""


@dataclass(frozen=True)
class Measured:
    name: str
    milliseconds: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    def row(self) -> tuple[str, str, str, str]:
        ordered = sorted(self.milliseconds)
        late = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        return self.name, str(len(ordered)), f"{self.median:.1f}", f"{late:.1f}"


def measure(folder: Path, presses: int, screenshot: Path | None) -> list[Measured]:
    """Next, leap, open and index, in this order."""
    began = time.perf_counter()
    episodes = Library(folder).runs()[0].index.refresh()
    index = 1e3 * (time.perf_counter() - began)
    key, episode = next(iter(episodes.items()))
    with serving(folder) as address, browser() as driver:
        page = f"{address}/episode?run=.&episode={key}&step={len(episode.places) // 2}"
        driver.get(page)  # the server reads the trace
        driver.execute_async_script(OPENED)
        driver.get(page)
        opened = driver.execute_async_script(OPENED)
        driver.execute_script(WATCH)
        one = Measured("next: ← and →", pressed(driver, presses, False))
        far = Measured("leap: shift ← and →", pressed(driver, presses, True))
        if screenshot:
            driver.save_screenshot(str(screenshot))
    return [one, far, Measured("open", [opened]), Measured("index", [index])]


def pressed(driver: webdriver.Chrome, presses: int, shift: bool) -> list[float]:
    """Milliseconds of so many presses, half of them to the right and half back."""
    driver.execute_script("window.presses = []")
    body = driver.find_element(By.TAG_NAME, "body")
    for number in range(presses):
        key = Keys.ARROW_RIGHT if number < presses // 2 else Keys.ARROW_LEFT
        body.send_keys(*((Keys.SHIFT, key) if shift else (key,)))
        _await(driver, number + 1)
    return driver.execute_script("return window.presses")


def _await(driver: webdriver.Chrome, wanted: int) -> None:
    deadline = time.monotonic() + 30
    while driver.execute_script("return window.presses.length") < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"press {wanted} was not painted within 30 s")
        time.sleep(0.01)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--segments", type=int, default=200)
    parser.add_argument("--presses", type=int, default=60)
    parser.add_argument("--screenshot", type=Path, help="of the page at the end")
    given = parser.parse_args(arguments)
    size = Size(given.steps, given.layers, given.segments)
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", size)
        megabytes = (run / "trace.jsonl").stat().st_size / 1e6
        table = Table("ms", "times", "p50", "p95", title=f"{size}, a trace of {megabytes:.0f} MB")
        for measured in measure(run, given.presses, given.screenshot):
            table.add_row(*measured.row())
    make_console().print(table)


if __name__ == "__main__":
    main()
