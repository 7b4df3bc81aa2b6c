"""Benchmark of the episode viewer on a long trace, in a real browser.

    python -m benchmarks.viewer [--steps N] [--layers N] [--segments N] [--presses N] [--screenshot FILE]

The command writes a run of 1,000 steps x 48 layers x 200 segments, serves it with `keep-agent view`, opens it in
headless Chromium (needs chromium and chromedriver) and presses keys. A press is measured from the key event to the
first frame with the new step. ``next``: arrow keys, one after another, to a step that is prefetched; ``leap``: shift
and arrow, to a step that is not prefetched. ``open``: from the request to the first painted step, with the trace
already indexed; ``index``: the server's indexing of the trace.
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
from keep_agent.viewer.runs import RunLibrary

WATCH = """
window.presses = [];
document.addEventListener("keydown", (event) => { window.began = event.timeStamp; }, true);
document.querySelector(".keep-viewer").addEventListener("keep-step", () => {
  const began = window.began;
  requestAnimationFrame(() => { const done = new MessageChannel();
    done.port1.onmessage = () => window.presses.push(performance.now() - began); done.port2.postMessage(0); });
});
"""
FIRST_PAINT = """
const asked = performance.now(); const done = arguments[0];
const look = () => document.querySelector(".keep-viewer .action") ? requestAnimationFrame(() => done(performance.now()))
  : requestAnimationFrame(look);
look();
"""


@dataclass(frozen=True)
class Measurement:
    name: str
    milliseconds: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    def row(self) -> tuple[str, str, str, str]:
        ordered = sorted(self.milliseconds)
        p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        return self.name, str(len(ordered)), f"{self.median:.1f}", f"{p95:.1f}"


def measure(folder: Path, presses: int, screenshot: Path | None) -> list[Measurement]:
    """Measure next, leap, open and index, in this order."""
    began = time.perf_counter()
    episodes = RunLibrary(folder).runs()[0].index.refresh()
    index = 1e3 * (time.perf_counter() - began)
    key, episode = next(iter(episodes.items()))
    with serving(folder) as address, browser() as driver:
        page = f"{address}/episode?run=.&episode={key}&step={len(episode.positions) // 2}"
        driver.get(page)  # the server indexes the trace
        driver.execute_async_script(FIRST_PAINT)
        driver.get(page)
        open_ms = driver.execute_async_script(FIRST_PAINT)
        driver.execute_script(WATCH)
        step = Measurement("next: ← and →", press_keys(driver, presses, False))
        leap = Measurement("leap: shift ← and →", press_keys(driver, presses, True))
        if screenshot:
            driver.save_screenshot(str(screenshot))
    return [step, leap, Measurement("open", [open_ms]), Measurement("index", [index])]


def press_keys(driver: webdriver.Chrome, presses: int, shift: bool) -> list[float]:
    """Press a key ``presses`` times, half of them to the right and half back; return the milliseconds."""
    driver.execute_script("window.presses = []")
    body = driver.find_element(By.TAG_NAME, "body")
    for number in range(presses):
        key = Keys.ARROW_RIGHT if number < presses // 2 else Keys.ARROW_LEFT
        body.send_keys(*((Keys.SHIFT, key) if shift else (key,)))
        _await(driver, number + 1)
    return driver.execute_script("return window.presses")


def _await(driver: webdriver.Chrome, count: int) -> None:
    deadline = time.monotonic() + 30
    while driver.execute_script("return window.presses.length") < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"press {count} was not painted within 30 s")
        time.sleep(0.01)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--segments", type=int, default=200)
    parser.add_argument("--presses", type=int, default=60)
    parser.add_argument("--screenshot", type=Path, help="file for an image of the page at the end")
    args = parser.parse_args(arguments)
    size = Size(args.steps, args.layers, args.segments)
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", size)
        megabytes = (run / "trace.jsonl").stat().st_size / 1e6
        table = Table("ms", "times", "p50", "p95", title=f"{size}, a trace of {megabytes:.0f} MB")
        for measured in measure(run, args.presses, args.screenshot):
            table.add_row(*measured.row())
    make_console().print(table)


if __name__ == "__main__":
    main()
