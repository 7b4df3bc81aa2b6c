"""Pages of the viewer in a headless Chromium, served by the command."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pytest

from benchmarks.viewer import measure
from benchmarks.viewer_browser import browser, chromium, serving
from benchmarks.viewer_trace import Size, write_run
from keep_agent.viewer.export.html import write_html
from keep_agent.viewer.trace_index import EpisodeIndex
from tests import waiting
from tests.keep_agent.viewer.conftest import play
from tests.keep_agent.viewer.traces import EVIL, append, first, opening, run_of, step, write, write_hostile

selenium = pytest.importorskip("selenium")
from selenium.webdriver import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.remote.webdriver import WebDriver  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402

ROWS = ".keep-episodes tbody tr"
WIDTHS = "[...document.querySelectorAll('.pictures img')].map((each) => each.naturalWidth)"


@pytest.fixture(scope="module")
def chrome() -> Iterator[WebDriver]:
    if chromium() is None:
        if os.environ.get("CI"):
            pytest.fail("these tests need chromium and chromedriver: apt-get install chromium chromium-driver")
        pytest.skip("needs chromium and chromedriver")
    with browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def runs(keep_run: Path, random_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder of runs: keep and cacheblend on the same episodes, one with pictures, one with hostile texts."""
    root = tmp_path_factory.mktemp("runs")
    shutil.copytree(keep_run, root / "keep")
    shutil.copytree(play("cacheblend", root.parent / "blend"), root / "cacheblend")
    shutil.copytree(random_run, root / "random")
    write_hostile(root / "evil")
    return root


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with serving(runs) as url:
        yield url


def until(driver: WebDriver, condition: Callable[[], object], text: str) -> None:
    waiting.until(condition, lambda: f"no {text}; {driver.get_log('browser')}")


def script(driver: WebDriver, code: str) -> object:
    return driver.execute_script(f"return {code}")


def text(driver: WebDriver, selector: str) -> str:
    """Return the text of the first matching element; empty if there is none."""
    return driver.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)


def query(driver: WebDriver) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(driver.current_url).query).items()}


def at_step(driver: WebDriver, number: int) -> None:
    """Wait until a step, counted from 0, is drawn."""
    until(driver, lambda: query(driver).get("step") == str(number), f"step {number}")
    assert script(driver, "document.querySelector('.toolbar input').value") == str(number + 1)


def press(driver: WebDriver, key: str) -> None:
    ActionChains(driver).send_keys(key).perform()


def first_episode(run: Path) -> EpisodeIndex:
    return first(run_of(run))


def page(address: str, run: str, root: Path, **options: object) -> str:
    """Return the address of the first episode of a run."""
    return f"{address}/episode?{urlencode({'run': run, 'episode': first_episode(root / run).key} | options)}"


def open_page(driver: WebDriver, url: str) -> None:
    driver.get_log("browser")
    driver.get(url)
    until(driver, lambda: text(driver, ".keep-viewer .action"), "a step")
    framed(driver)


def framed(driver: WebDriver) -> None:
    """Wait until the page is laid out, and observers of its size have been called."""
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def find(driver: WebDriver, selector: str) -> WebElement:
    return driver.find_element(By.CSS_SELECTOR, selector)


def count(driver: WebDriver, selector: str) -> int:
    return len(driver.find_elements(By.CSS_SELECTOR, selector))


def open_list(driver: WebDriver, address: str) -> None:
    driver.get(f"{address}/")
    until(driver, lambda: count(driver, ROWS) == 7, "list of all episodes")


def check_log(driver: WebDriver) -> None:
    assert [line for line in driver.get_log("browser") if line["level"] == "SEVERE"] == []


def test_list_is_filtered_and_opens_an_episode(chrome: WebDriver, address: str) -> None:
    open_list(chrome, address)
    find(chrome, ".keep-filters input[aria-label=search]").send_keys("random")
    until(chrome, lambda: count(chrome, ROWS) == 2, "filtered list")
    assert "2 of 7 episodes" in text(chrome, ".keep-keys")
    find(chrome, ".keep-episodes td.keep-episode").click()
    until(chrome, lambda: text(chrome, ".keep-viewer .action"), "the episode")
    assert query(chrome)["run"] == "random"
    chrome.find_element(By.PARTIAL_LINK_TEXT, "all episodes").click()
    until(chrome, lambda: "7 of 7 episodes" in text(chrome, ".keep-keys"), "the list again")


def test_keys_and_slider_move_through_the_steps(chrome: WebDriver, address: str, runs: Path) -> None:
    run = run_of(runs / "keep")
    episode = first(run)
    last = len(episode.positions) - 1
    open_page(chrome, page(address, "keep", runs))
    for key, number in ((Keys.ARROW_RIGHT, 1), (Keys.ARROW_RIGHT, 2), (Keys.ARROW_LEFT, 1), (Keys.END, last)):
        press(chrome, key)
        at_step(chrome, number)
        assert episode.outlines[number].skill in text(chrome, ".keep-viewer .action")
        assert run.index.entry(episode, number)["instruction"] == text(chrome, ".keep-viewer .instruction")
    ActionChains(chrome).key_down(Keys.SHIFT).send_keys(Keys.ARROW_LEFT).key_up(Keys.SHIFT).perform()
    at_step(chrome, max(0, last - 10))
    for key in (Keys.HOME, Keys.ARROW_LEFT):
        press(chrome, key)
        at_step(chrome, 0)
    move = "const slider = arguments[0]; slider.value = 2; slider.dispatchEvent(new Event('input'))"
    chrome.execute_script(move, find(chrome, ".track-box input"))
    at_step(chrome, 2)


def test_address_names_the_visible_step(chrome: WebDriver, address: str, runs: Path) -> None:
    open_page(chrome, page(address, "keep", runs))
    at_step(chrome, 0)
    last = len(first_episode(runs / "keep").positions) - 1
    chrome.execute_script(
        "const real = window.fetch, ready = new Promise((resolve) => { window.deliver = resolve; });"
        "window.fetch = (...values) => ready.then(() => real(...values))"
    )
    press(chrome, Keys.END)
    find(chrome, ".memory .line").click()
    until(chrome, lambda: query(chrome).get("segment"), "the segment in the address")
    assert query(chrome)["step"] == "0"
    chrome.execute_script("window.deliver()")
    at_step(chrome, last)


def test_click_on_a_block_shows_its_text_and_ranks(chrome: WebDriver, address: str, runs: Path) -> None:
    run = run_of(runs / "keep")
    episode = first(run)
    number, entry = next(
        (number, entry)
        for number in range(len(episode.positions))
        if (entry := run.index.entry(episode, number))["hops"] and entry["hops"][0]["edges"]
    )
    target = entry["hops"][0]["edges"][0][1]
    open_page(chrome, page(address, "keep", runs, step=number))
    block = find(chrome, f".layers-panel rect[data-key='{target}']")
    ActionChains(chrome).move_to_element(block).click().perform()
    until(chrome, lambda: text(chrome, ".detail-panel b") == target, "the segment")
    assert text(chrome, ".detail-panel pre") == episode.texts.versions(number, target)[-1][1]
    count_chosen = sum(target in [edge[1] for edge in hop["edges"]] for hop in entry["hops"])
    assert count(chrome, ".detail-panel circle.rank") == count_chosen
    assert text(chrome, ".memory .line.selected span:nth-child(2)") == target
    until(chrome, lambda: query(chrome).get("segment") == target, "the address")
    chrome.execute_script("document.querySelector('.scroller').scrollTop = 0")
    find(chrome, ".memory .line").click()
    until(chrome, lambda: text(chrome, ".detail-panel b") == entry["segments"][0]["id"], "the first segment")
    find(chrome, f".node[data-key='{target}'] rect").click()
    until(chrome, lambda: text(chrome, ".detail-panel b") == target, "the node's segment")


def test_deep_link_opens_its_step_also_after_a_reload(chrome: WebDriver, address: str, runs: Path) -> None:
    open_page(chrome, page(address, "keep", runs, step=2, segment="did_1"))
    at_step(chrome, 2)
    press(chrome, Keys.ARROW_RIGHT)
    at_step(chrome, 3)
    header = text(chrome, ".keep-viewer header.step")
    chrome.refresh()
    until(chrome, lambda: text(chrome, ".keep-viewer .action"), "a step")
    at_step(chrome, 3)
    assert text(chrome, ".keep-viewer header.step") == header and query(chrome)["segment"] == "did_1"


def test_step_is_redrawn_for_another_width_only(chrome: WebDriver, address: str, runs: Path) -> None:
    open_page(chrome, page(address, "keep", runs))
    before = find(chrome, ".layers-panel svg")
    chrome.execute_script("document.querySelector('.track-box').style.height = '99px'")
    framed(chrome)
    assert find(chrome, ".layers-panel svg") == before
    chrome.execute_script("document.querySelector('.keep-viewer').style.width = '900px'")
    framed(chrome)
    redrawn = find(chrome, ".layers-panel svg")
    assert redrawn != before and int(redrawn.get_attribute("width")) < 900


def test_two_runs_move_together_with_marked_differences(chrome: WebDriver, address: str, runs: Path) -> None:
    open_page(chrome, page(address, "keep", runs, other="cacheblend"))
    press(chrome, Keys.ARROW_RIGHT)
    at_step(chrome, 1)
    skills = script(chrome, "[...document.querySelectorAll('.action b')].map((each) => each.textContent)")
    assert skills == [first_episode(runs / name).outlines[1].skill for name in ("keep", "cacheblend")]
    second = {"other": "random", "other_episode": first_episode(runs / "random").key}
    open_page(chrome, page(address, "keep", runs, **second))
    assert script(chrome, "document.querySelector('.marks .differs').getAttribute('d')"), "the episodes differ"
    assert count(chrome, ".pane.differs") == 2


def test_two_selected_episodes_are_compared(chrome: WebDriver, address: str) -> None:
    open_list(chrome, address)
    button = find(chrome, ".keep-filters button")
    assert not button.is_enabled(), "it needs two selected episodes"
    for box in chrome.find_elements(By.CSS_SELECTOR, ".keep-episodes tbody .q-checkbox")[:2]:
        box.click()
    until(chrome, button.is_enabled, "the button")
    button.click()
    until(chrome, lambda: count(chrome, ".pane .action") == 2, "two panes")
    assert query(chrome)["other"] == "cacheblend"


def test_pictures_are_shown_before_and_after(chrome: WebDriver, address: str, runs: Path) -> None:
    open_page(chrome, page(address, "random", runs, step=1))
    until(chrome, lambda: script(chrome, WIDTHS) == [8, 8], "two pictures")
    assert "This planner has no model" in text(chrome, ".layers-panel")


def test_pages_load_from_their_server_only(chrome: WebDriver, address: str, runs: Path) -> None:
    chrome.get_log("performance")
    open_list(chrome, address)
    open_page(chrome, page(address, "random", runs, step=1))
    press(chrome, Keys.ARROW_RIGHT)
    at_step(chrome, 2)
    origin = "{0.scheme}://{0.netloc}/".format(urlsplit(address))
    messages = [json.loads(line["message"])["message"] for line in chrome.get_log("performance")]
    urls = [item["params"]["request"]["url"] for item in messages if item["method"] == "Network.requestWillBeSent"]
    assert len(urls) > 10 and [url for url in urls if not url.startswith((origin, "data:", "blob:"))] == []
    check_log(chrome)


def test_hostile_texts_are_no_markup(chrome: WebDriver, address: str, runs: Path, tmp_path: Path) -> None:
    run = run_of(runs / "evil")
    file = write_html(run, run.index.episode(EVIL), tmp_path / "evil.html")
    viewer = [".keep-viewer .action", ".keep-viewer .tree", ".keep-viewer .memory"]
    page = f"{address}/episode?run=evil&episode={quote(EVIL)}"
    for url, selectors in ((page, viewer), (file.as_uri(), viewer), (f"{address}/", [".keep-episodes"])):
        chrome.get(url)
        until(chrome, lambda selectors=selectors: all(EVIL in text(chrome, part) for part in selectors), "the texts")
        framed(chrome)
        assert count(chrome, "img[src=x]") == 0 and chrome.title != "broken"


def test_export_opens_from_a_file_with_its_keys(chrome: WebDriver, runs: Path, tmp_path: Path) -> None:
    run = run_of(runs / "random")
    episode = first(run)
    open_page(chrome, write_html(run, episode, tmp_path / "page.html").as_uri())
    assert chrome.current_url.startswith("file://")
    press(chrome, Keys.END)
    last = len(episode.positions) - 1
    until(chrome, lambda: chrome.current_url.endswith(f"#step={last}"), "the last step")
    assert episode.outlines[last].skill in text(chrome, ".keep-viewer .action")
    until(chrome, lambda: script(chrome, WIDTHS) == [8, 8], "its pictures")
    check_log(chrome)


def test_growing_run_is_followed(chrome: WebDriver, address: str, runs: Path) -> None:
    run = write(runs / "live", [opening("live"), step(0, "live")])
    open_page(chrome, f"{address}/episode?run=live&episode=live")
    append(run, step(1, "live", skill="look around"))
    until(chrome, lambda: "of 2" in text(chrome, ".toolbar"), "the second step")
    at_step(chrome, 0)
    find(chrome, ".toolbar input[type=checkbox]").click()
    at_step(chrome, 1)
    append(run, step(2, "live", skill="take a rest"))
    at_step(chrome, 2)
    until(chrome, lambda: "take a rest" in text(chrome, ".action"), "the new step")
    shutil.rmtree(run)


def test_missing_episode_is_an_error_on_the_page(chrome: WebDriver, address: str) -> None:
    chrome.get(f"{address}/episode?run=keep&episode=nowhere")
    until(chrome, lambda: "no episode 'nowhere'" in text(chrome, ".keep-refused"), "a refusal")


@pytest.mark.slow
def test_step_of_a_large_trace_is_painted_within_a_tenth_of_a_second(chrome: WebDriver, tmp_path: Path) -> None:
    """Compare the median over key presses, in three tries, since other processes may disturb one."""
    run = write_run(tmp_path / "long", Size(steps=150))
    medians = []
    for _ in range(3):
        medians.append(measure(run, 30, None)[0].median)
        if medians[-1] <= 100:
            return
    pytest.fail(f"the slider takes {medians} ms")
