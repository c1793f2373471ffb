"""The page, in a real Chromium: each thing that it does, that texts stay texts, and that much of
them is no trouble. `make test-page SHOTS=DIR` makes pictures of each view, as docs/http.md has."""

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from playwright import sync_api
from storage import open_memory
from wire import TIMEOUT, server_command, small_env

from sediment import Memory
from sediment_ext.sync.merge import queue_pairs_of

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
SHOTS = os.environ.get("SEDIMENT_SHOTS")
pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium here (apt-get install chromium)")
expect = sync_api.expect
EVIL = (
    "<script>window.hit = 1</script><img src=x onerror='window.hit = 2'>"
    "<svg onload='window.hit = 3'></svg><a href=\"javascript:window.hit = 4\">{{7*7}}</a> heron"
)


@contextlib.contextmanager
def browsing(home: Path, unpacked: Path, *options: str) -> Iterator[str]:
    """`sediment browse`, and the address that it prints; Ctrl-C must end it, without a fault."""
    env = small_env(home, SEDIMENT_CACHE=str(unpacked), SEDIMENT_RATE_LIMIT="0")
    command = [*server_command()[:-1], *options, "browse", "--no-open"]
    with tempfile.TemporaryFile() as log:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": log}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=home, env=env, **pipes)
        assert process.stdout
        try:
            yield process.stdout.readline().decode().split()[0]
        finally:
            process.send_signal(2)
            assert process.wait(TIMEOUT) == 0
            log.seek(0)
            assert "Traceback" not in (rest := log.read().decode()), rest


def session(address: str) -> str:
    """The token that a page gets for the key in its address."""
    start, key = address.split("#")
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{start}v1/session", b"", headers, method="POST")
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        return json.load(answer)["token"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=root)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, unpacked: Path) -> Iterator[tuple[Path, str]]:
    """A database with a server on it, and the address with a token behind it."""
    home = tmp_path_factory.mktemp("page")
    path = home / "memory.db"
    with open_memory(path, "demo") as memory:
        memory.store("The kettle is in the cellar.", created_at="2026-01-05")
    with browsing(home, unpacked, "--db", str(path), "--project", "demo") as address:
        yield path, f"{address.split('#')[0]}#{session(address)}"


@pytest.fixture
def memory(place: tuple[Path, str]) -> Iterator[Memory]:
    """The memory that the server has open, too; what a test stores is gone after it."""
    with open_memory(place[0], "demo") as memory:
        before = ids(memory)
        yield memory
        for id in ids(memory) - before:
            memory.forget(id)


class Tab:
    """The page in a tab of its own; what the console says counts as a fault."""

    def __init__(self, browser: Any, address: str, **how: Any) -> None:
        self.start, token = address.split("#")
        self.context = browser.new_context(**{"viewport": {"width": 900, "height": 640}, **how})
        self.context.set_default_timeout(60_000)
        if token:
            known = f"if (location.host) sessionStorage.setItem('token', {token!r})"
            self.context.add_init_script(known)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("console", lambda told: self.faults.append(told.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))

    def go(self, view: str) -> None:
        """Show a view, loaded anew."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.start}#/{view}")

    def sees(self, text: str) -> None:
        expect(self.page.locator("main")).to_contain_text(text, timeout=60_000)

    def is_told(self, text: str) -> None:
        expect(self.page.locator("#status")).to_contain_text(text, timeout=60_000)

    def press(self, *keys: str) -> None:
        """Press keys, each when the view is shown: before, those of a view do nothing."""
        for key in keys:
            self.page.wait_for_selector("main[aria-busy=false]", state="attached")
            self.page.keyboard.press(key)

    def move_to(self, project: str) -> None:
        """Move what is shown or chosen to a project, or with "" to every one."""
        self.press("m")
        self.page.select_option("#moving-to", project)
        self.page.click("#moving-yes")

    def hold(self, path: str = "") -> None:
        """Let each request to an address that ends so wait until it is released."""
        self.page.evaluate(HOLD, path)

    def release(self, path: str = "") -> None:
        self.page.evaluate("path => window.held[path]()", path)


HOLD = """path => {
  const ask = window.fetch;
  const open = new Promise(done => { window.held = {...window.held, [path]: done}; });
  window.fetch = async (url, given) => {
    if (url.pathname.endsWith(path)) await open;
    return ask(url, given);
  };
}"""


@pytest.fixture
def tab(browser: Any, place: tuple[Path, str]) -> Iterator[Tab]:
    tab = Tab(browser, place[1])
    yield tab
    tab.page.unroute_all(behavior="wait")  # else what a test still answers fails in the next one
    assert tab.faults == []
    tab.context.close()


# Who may


def test_the_key_in_the_address_is_good_once(browser: Any, tmp_path: Path, unpacked: Path) -> None:
    with browsing(tmp_path, unpacked, "--project", "demo") as address:
        tab = Tab(browser, address.split("#")[0] + "#")
        tab.page.goto(address)
        tab.sees("Nothing is stored yet")
        assert tab.page.url.endswith("/#/newest")
        tab.page.reload()
        tab.sees("Nothing is stored yet")
        assert tab.faults == []
        with pytest.raises(HTTPError, match=r"40[13]"):
            session(address)
        with tab.context.expect_page() as opened:  # a tab of its own has no session of its own
            tab.page.get_by_role("link", name="Figures").click(modifiers=["Control"])
        expect(opened.value.locator("main h1")).to_have_text("Figures", timeout=60_000)
        other = Tab(browser, address.split("#")[0] + "#")
        other.page.goto(address)
        other.sees("A token is needed")
        other.page.fill("#token", tab.page.evaluate("sessionStorage.getItem('token')"))
        other.press("Enter")
        other.sees("Nothing is stored yet")
        other.is_told("0 in all")
        other.page.evaluate("sessionStorage.setItem('token', 'of-another-server')")
        other.page.reload()
        other.sees("A token is needed")
        other.is_told("A token is needed, or this one was revoked")
        for one in (tab, other):
            one.context.close()


def test_the_page_may_run_nothing_else(tab: Tab) -> None:
    answer = tab.page.goto(tab.start)
    policy = answer.headers["content-security-policy"]
    for rule in ("default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    tab.sees("memor")
    assert tab.faults == []
    for deed in (
        "document.body.innerHTML = '<b>no</b>'",
        "document.createElement('div').setAttribute('onclick', 'window.hit = 9')",
        "document.createElement('script').textContent = 'window.hit = 9'",
        "document.createElement('script').src = '/v1/stats'",
    ):
        with pytest.raises(sync_api.Error, match="Trusted"):
            tab.page.evaluate(f"() => {{ {deed}; }}")
    elsewhere = "fetch('http://127.0.0.1:9/').then(() => 'asked', () => 'refused')"
    assert tab.page.evaluate(elsewhere) == "refused"
    assert any("Content Security Policy" in fault for fault in tab.faults)
    tab.faults.clear()


def test_what_a_memory_says_never_runs(tab: Tab, memory: Memory) -> None:
    old = memory.store(EVIL)["id"]
    new = memory.store(f"{EVIL} again", replace=old)["id"]
    link(memory, new, memory.store(f"Beside it: {EVIL}")["id"])
    review(memory, memory.store(f"{EVIL} one")["id"], memory.store(f"{EVIL} two")["id"])
    for view in ("newest", "search/heron", f"memory/{new}", "settle", "search/" + "%3Cscript%3E"):
        tab.go(view)
        tab.page.wait_for_selector("main h1")
        if "script" not in view:
            tab.sees("<script>window.hit = 1</script>")
        assert tab.page.evaluate("window.hit") is None
        assert tab.page.locator("main img, main script, main a[href^=javascript]").count() == 0


# Finding


def test_a_search_answers_while_one_types_with_reasons(tab: Tab, memory: Memory) -> None:
    rows = [memory.store(text, created_at=day)["id"] for text, day in BOATS]
    tab.go("newest")
    tab.sees("memories")
    tab.press("/")
    tab.page.keyboard.type("Which ferry goes to Orkney?", delay=5)
    tab.sees("result")
    first = tab.page.locator(".row").first
    expect(first).to_contain_text("Orkney")
    expect(first.locator("mark")).to_have_text(["ferry", "Orkney"])  # no function words
    assert re.fullmatch(r"\d+ %", first.locator(".score b").inner_text())
    reasons = first.locator(".reasons")
    expect(reasons).to_be_hidden()
    first.get_by_text("why?").click()
    expect(reasons).to_contain_text("meaning")
    expect(reasons).to_contain_text(rows[0])
    tab.press("/")
    tab.press("ArrowDown", "Enter")
    tab.sees("History")
    assert tab.page.url.endswith(rows[0])
    tab.press("Escape")
    expect(first.locator(".open")).to_be_focused()
    unseen = {row["id"] for row in memory.list_items(never_recalled=True, limit=100)["items"]}
    assert unseen >= set(rows), "a look counts as no recall"


BOATS = (
    ("The ferry to Orkney leaves Scrabster at 08:45, later on Sundays.", "2026-03-02"),
    ("Tickets for the ferry are cheaper before noon; Berta has the account.", "2026-02-10"),
    ("The night train to the ferry runs from April to October.", "2026-01-20"),
)


def test_enter_opens_nothing_of_the_list_before_the_answer(tab: Tab, memory: Memory) -> None:
    memory.store("The sextant is in the chest.")
    tab.go("newest")
    tab.sees("The kettle")
    tab.hold()
    tab.press("/")
    tab.page.keyboard.type("sextant")
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator("#query")).to_be_focused()
    tab.release()
    tab.sees("result")
    tab.press("Enter", "Enter")
    tab.sees("History")
    tab.sees("The sextant")


def test_what_was_typed_stays_in_the_field_that_is_left(tab: Tab, memory: Memory) -> None:
    memory.store("The pennant is blue.")
    tab.go("search/pennant")
    tab.sees("result")
    tab.press("/", "Escape")
    expect(tab.page.locator("#content")).to_be_focused()
    expect(tab.page.locator("#query")).to_have_value("pennant")


def test_keys_of_an_input_method_are_its_own(tab: Tab, memory: Memory) -> None:
    id = memory.store("The buoy is named 浮標.")["id"]
    tab.go("search/buoy")
    tab.sees("result")
    tab.press("/")
    tab.page.evaluate(COMPOSE, "Enter")
    expect(tab.page.locator("#query")).to_be_focused()
    tab.go(f"memory/{id}")
    tab.sees("The buoy")
    tab.press("e")
    tab.page.evaluate(COMPOSE, "Escape")
    expect(tab.page.locator("#edit")).to_be_focused()


# A key while an input method makes a word, as of Japanese.
COMPOSE = """key => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", {key, isComposing: true, bubbles: true, cancelable: true}))"""


def test_a_view_that_is_asked_for_after_a_search_stays(tab: Tab, memory: Memory) -> None:
    tab.go("newest")
    tab.sees("The kettle")
    tab.page.evaluate(SEARCH_AND_GO)
    tab.sees("Stored, by week")
    later = "() => new Promise(go => setTimeout(go, 200))"  # than a search that waits begins
    tab.page.evaluate(later)
    assert tab.page.url.endswith("#/figures")


# At once: types, then follows a link.
SEARCH_AND_GO = """() => { const query = document.querySelector("#query");
  query.value = "kettle";
  query.dispatchEvent(new Event("input"));
  document.querySelector("a[href$=figures]").click(); }"""


def test_an_address_typed_by_hand_may_have_a_percent_sign(tab: Tab, memory: Memory) -> None:
    memory.store("The tank is filled to 80 percent.")
    tab.go("search/tank 80%")
    tab.sees("filled to 80 percent")
    expect(tab.page.locator("#query")).to_have_value("tank 80%")


def test_filters_choose_and_pages_turn(tab: Tab, memory: Memory) -> None:
    lines = [
        {"id": f"buoy-{at:02}", "content": f"Buoy number {at} is green.", "scope": "global"}
        | {"created": f"2025-03-{at % 28 + 1:02}"}
        for at in range(40)
    ]
    memory.import_rows(lines)
    tab.go("newest")
    tab.sees("Buoy number")
    tab.page.fill("#filter-since", "2025-03-01")
    tab.page.fill("#filter-until", "2025-03-31")
    tab.page.select_option("#filter-scope", "global")
    tab.sees("40 memories")
    tab.sees("page 1 of 2")
    assert tab.page.locator(".row").count() == 30
    tab.press("Escape", "]")
    tab.sees("page 2 of 2")
    tab.press("[")
    tab.sees("page 1 of 2")
    tab.page.select_option("#filter-oldest", "true")
    expect(tab.page.locator(".row").first).to_contain_text("1 Mar 2025")
    tab.page.select_option("#filter-never_recalled", "true")
    tab.sees("40 memories")
    tab.page.select_option("#filter-replaced", "true")
    tab.sees("No memory fits these filters")


def test_tags_and_the_end_of_a_memory_are_edited_and_lists_are_kept_to_a_tag(
    tab: Tab, memory: Memory
) -> None:
    id = memory.store("The heron nests by the weir.", tags=["birds"])["id"]
    tab.go(f"memory/{id}")
    expect(tab.page.locator("#tags")).to_have_value("birds", timeout=60_000)
    tab.page.fill("#tags", "birds #River")
    tab.press("Tab")
    tab.is_told("Tags saved.")
    assert memory.get(id)["tags"] == ["birds", "river"]
    tab.page.fill("#end", "2099-12-31")
    tab.press("Tab")
    tab.is_told("Its end is saved.")
    assert memory.get(id)["expires"].startswith("2099-12-31")
    tab.go("newest")
    tab.sees("The kettle")
    tab.page.select_option("#filter-tag", "river")
    tab.sees("#river")
    expect(tab.page.locator("main")).not_to_contain_text("The kettle", timeout=60_000)


def test_the_focus_stays_where_one_works(tab: Tab, memory: Memory) -> None:
    memory.import_rows([{"content": f"Rope number {at}.", "scope": "global"} for at in range(65)])
    id = memory.store("A knot. " * 3000)["id"]
    tab.go("newest")
    tab.sees("page 1 of 3")
    tab.page.focus("#next")
    tab.press("Enter")
    tab.sees("page 2 of 3")
    expect(tab.page.locator("#next")).to_be_focused()
    tab.press("Enter")
    tab.sees("page 3 of 3")
    expect(tab.page.locator("main h1")).to_be_focused()
    tab.press("j", "j", "Enter")
    tab.sees("History")
    tab.press("Escape")
    tab.sees("page 3 of 3")
    expect(tab.page.locator(".row .open").nth(1)).to_be_focused()
    tab.go(f"memory/{id}")
    tab.page.get_by_role("button", name="Show all").press("Enter")
    expect(tab.page.locator("#body .text")).to_be_focused()


def test_a_page_that_is_no_more_gives_way_to_the_last(tab: Tab, memory: Memory) -> None:
    lines = [{"id": f"sail-{at:02}", "content": f"Sail number {at}."} for at in range(31)]
    memory.import_rows(line | {"scope": "global"} for line in lines)
    tab.go("newest")
    tab.page.select_option("#filter-scope", "global")
    tab.sees("31 memories")
    tab.press("Escape", "]")
    tab.sees("page 2 of 2")
    tab.page.locator(".row .open").click()
    tab.sees("History")
    tab.press("x")
    tab.page.click("#sure-yes")
    tab.sees("30 memories")
    assert tab.page.locator(".row").count() == 30


def test_a_filter_that_was_left_takes_no_keys(tab: Tab, memory: Memory) -> None:
    memory.import_rows([{"content": f"Oar number {at}.", "scope": "global"} for at in range(40)])
    tab.go("newest")
    tab.sees("page 1 of 2")
    tab.hold()
    tab.page.focus("#filter-oldest")
    tab.page.select_option("#filter-oldest", "true")
    expect(tab.page.locator("main")).to_have_attribute("aria-busy", "true")
    tab.page.keyboard.press("Escape")  # before its answer is there
    tab.release()
    tab.press("]")
    tab.sees("page 2 of 2")


def test_another_project_is_chosen(tab: Tab, memory: Memory) -> None:
    memory.of_project("harbour").store("Only the harbour knows of the lamp.")
    tab.go("newest")
    tab.page.wait_for_selector("#project option[value=harbour]", state="attached")
    tab.page.select_option("#project", "harbour")
    tab.page.select_option("#filter-scope", "project")
    tab.sees("1 memory")
    tab.sees("Only the harbour knows")
    tab.page.reload()
    tab.sees("Only the harbour knows")
    expect(tab.page.locator("#project")).to_have_value("harbour")


# One memory


def test_an_edit_is_a_new_version_and_undo_takes_it_back(tab: Tab, memory: Memory) -> None:
    id = memory.store("The gate opens at six for the milk van.", created_at="2026-03-01")["id"]
    link(memory, id, memory.store("The milk van comes from Thurso.")["id"])
    tab.go(f"memory/{id}")
    tab.sees("The gate opens at six")
    assert tab.page.locator("#graph .node").count() == 2
    tab.press("e")
    tab.page.fill("#edit", "The gate opens at seven for the milk van.")
    tab.press("Control+Enter")
    expect(tab.page.locator("#versions del")).to_have_text("six", timeout=60_000)
    expect(tab.page.locator("#versions ins")).to_have_text("seven")
    tab.is_told("Saved as a new version.")
    new = memory.history(id)["versions"][-1]
    assert (new["content"], new["live"]) == ("The gate opens at seven for the milk van.", True)
    tab.press("u")
    expect(tab.page.locator("#body")).to_contain_text("at six", timeout=60_000)
    expect(tab.page.locator(".events", has_text="taken back")).to_be_visible()
    assert "ended" not in memory.get(id)
    expect(tab.page.locator("main h1")).to_have_text("A memory")


def test_a_key_pressed_twice_means_it_once(tab: Tab, memory: Memory) -> None:
    id = memory.store("The crane lifts one ton.")["id"]
    for load in ("two", "three"):
        id = memory.store(f"The crane lifts {load} tons.", replace=id)["id"]
    tab.go(f"memory/{id}")
    tab.sees("three tons")
    tab.hold()
    tab.press("u", "u")
    tab.release()
    expect(tab.page.locator("#body")).to_contain_text("two tons", timeout=60_000)
    undone = [one for one in memory.history(id)["events"] if one["action"] == "undo"]
    assert len(undone) == 1


def test_what_was_done_is_said_by_the_view_that_follows_alone(tab: Tab, memory: Memory) -> None:
    id = memory.store("The lock opens at six.")["id"]
    tab.go(f"memory/{id}")
    tab.sees("The lock opens at six")
    tab.press("e")
    tab.page.fill("#edit", "The lock opens with ghp_" + "a1B2" * 9)
    tab.press("Control+Enter")
    expect(tab.page.locator("ins").last).to_contain_text("redacted: github token")
    tab.is_told("github token")
    tab.press("x")
    tab.page.click("#sure-yes")
    tab.sees("memor")
    tab.is_told("Forgotten.")
    expect(tab.page.locator("main h1")).to_have_text(re.compile(r"^\d+ memor"))
    tab.press("4")
    tab.sees("Figures")
    expect(tab.page.locator("#status")).to_have_text("")


def test_escape_leaves_a_text_as_it_was(tab: Tab, memory: Memory) -> None:
    id = memory.store("The anchor weighs a ton.")["id"]
    tab.go(f"memory/{id}")
    tab.sees("The anchor")
    tab.press("e")
    tab.page.fill("#edit", "nothing")
    tab.press("Escape")
    expect(tab.page.locator("#body .text")).to_have_text("The anchor weighs a ton.")
    assert len(memory.history(id)["versions"]) == 1


def test_an_edit_is_lost_only_by_who_leaves_it(tab: Tab, memory: Memory, place: Any) -> None:
    id = memory.store("The rudder hangs on two hooks.")["id"]
    tab.go(f"memory/{id}")
    tab.sees("The rudder")
    tab.press("e")
    tab.page.fill("#edit", "The rudder hangs on three hooks.")
    field = tab.page.locator("#edit")
    tab.page.route(f"**/v1/memories/{id}?*", lambda route: route.fulfill(status=401, json={}))
    tab.press("Control+Enter")
    tab.sees("A token is needed")
    tab.page.unroute(f"**/v1/memories/{id}?*")
    tab.page.fill("#token", place[1].split("#")[1])
    tab.press("Enter")
    expect(field).to_have_value("The rudder hangs on three hooks.")
    tab.sees("Not saved yet")
    tab.page.get_by_role("link", name="Figures").click()
    tab.sees("Stored, by week")
    tab.page.go_back()
    expect(field).to_have_value("The rudder hangs on three hooks.")
    with tab.page.expect_event("dialog") as asked:
        tab.page.evaluate("() => { setTimeout(() => location.reload()); }")
    assert asked.value.type == "beforeunload"
    asked.value.dismiss()
    expect(field).to_be_focused()
    tab.press("Control+Enter")
    tab.is_told("Saved as a new version.")
    expect(tab.page.locator("#versions ins")).to_have_text("three")
    tab.page.go_back()
    tab.sees("A memory that was replaced")
    expect(field).to_have_count(0)
    assert len(memory.history(id)["versions"]) == 2
    assert [fault for fault in tab.faults if "status of 401" not in fault] == []
    tab.faults.clear()


def test_who_edits_is_left_at_it_by_a_late_answer(tab: Tab, memory: Memory) -> None:
    id = memory.store("The oarlock is of brass.")["id"]
    tab.go(f"memory/{id}")
    tab.sees("The oarlock")
    tab.hold("/move")
    tab.move_to("")
    tab.press("e")
    tab.page.keyboard.type("Really: ")
    tab.release("/move")
    tab.is_told("Moved to every project.")
    tab.press("End", "!")
    expect(tab.page.locator("#edit")).to_have_value(re.compile("Really: .*!"))
    tab.press("Escape")
    expect(tab.page.locator("#title")).to_be_focused()
    tab.press("e")
    tab.page.get_by_role("button", name="Leave it as it was").click()
    expect(tab.page.locator("#title")).to_be_focused()


def test_what_is_written_while_an_edit_is_kept_is_kept_too(tab: Tab, memory: Memory) -> None:
    id = memory.store("The tiller is of ash.")["id"]
    tab.go(f"memory/{id}")
    tab.sees("The tiller")
    tab.hold(id)
    tab.press("e")
    tab.page.fill("#edit", "The tiller is of oak.")
    tab.press("Control+Enter")
    tab.page.keyboard.insert_text(" Or elm?")
    tab.release(id)
    tab.sees("Not saved yet")
    expect(tab.page.locator("#edit")).to_have_value("The tiller is of oak. Or elm?")
    assert [row["content"] for row in memory.history(id)["versions"]][1:] == [
        "The tiller is of oak."
    ]
    tab.press("Escape")
    expect(tab.page.locator("#body .text")).to_have_text("The tiller is of oak.")


def test_a_memory_is_confirmed_moved_and_forgotten(tab: Tab, memory: Memory) -> None:
    id = memory.store("The signal mast is painted white.")["id"]
    tab.go(f"memory/{id}")
    tab.sees("signal mast")
    tab.press("c")
    tab.sees("confirm")
    sql = "SELECT validation_count FROM access_log WHERE item_id = ?"
    assert memory.database.value(sql, id) == 1
    tab.move_to("")
    tab.is_told("Moved to every project.")
    assert memory.get(id)["scope"] == "global"
    tab.press("u")
    tab.is_told("Undone.")
    assert memory.get(id)["project"] == "demo"
    moved = tab.page.locator("main li").filter(has_text="Moved")
    expect(moved).to_have_count(
        2
    )  # the view is that of after the undo: it would take the question away
    tab.press("x")
    expect(tab.page.locator("#sure-no")).to_be_focused()
    tab.press("Enter")
    assert memory.get(id)["id"] == id, "the first answer is no"
    tab.press("x")
    tab.page.click("#sure-yes")
    tab.is_told("Forgotten.")
    assert ids(memory)
    assert id not in ids(memory)


def test_the_question_of_a_memory_goes_with_it(tab: Tab, memory: Memory) -> None:
    id = memory.store("The fender is of rope.")["id"]
    tab.go("newest")
    tab.sees("The fender")
    tab.page.get_by_role("link", name="The fender").click()
    tab.sees("History")
    tab.press("x")
    expect(tab.page.locator("#sure")).to_be_visible()
    tab.page.go_back()
    tab.sees("memor")
    expect(tab.page.locator("#sure")).to_be_hidden()
    assert memory.get(id)["id"] == id


def test_what_was_forgotten_elsewhere_does_not_come_back(tab: Tab, memory: Memory) -> None:
    id = memory.store("The old code of the gate is 4711.")["id"]
    tab.go(f"memory/{id}")
    tab.sees("The old code")
    memory.forget(id)
    tab.press("c")
    tab.is_told("This memory is not here any more")
    assert "The old code" not in str(memory.list_items(limit=100))
    assert [fault for fault in tab.faults if "status of 404" not in fault] == []
    tab.faults.clear()


def test_what_cannot_be_done_is_said(tab: Tab, memory: Memory) -> None:
    show_twin(tab, memory, "The tide table hangs in the hall.")
    tab.move_to("")
    tab.is_told("The same text is there already")
    expect(tab.page.locator("#told")).to_have_class("bad")
    tab.page.goto(f"{tab.start}#/memory/nothing-like-that")  # in place of what is shown
    expect(tab.page.locator("main h1")).to_have_text("No such memory")
    expect(tab.page.locator("main")).not_to_contain_text("tide table")
    tab.press("Escape")
    tab.sees("memor")
    assert [fault for fault in tab.faults if "status of 40" not in fault] == []
    tab.faults.clear()  # a browser names each refused request


def test_what_happened_is_seen_wherever_one_has_scrolled(tab: Tab, memory: Memory) -> None:
    log = "".join(f"{at} o'clock: nothing of note.\n" for at in range(90))
    show_twin(tab, memory, log)
    tab.move_to("")
    tab.is_told("The same text is there already")
    expect(tab.page.locator("#status")).to_be_in_viewport(ratio=1)
    tab.faults.clear()  # a browser names each refused request


def test_a_refusal_is_said_too_to_who_has_gone_on(tab: Tab, memory: Memory) -> None:
    show_twin(tab, memory, "The cleat is loose.")
    tab.hold("/move")
    tab.hold("/figures")
    tab.move_to("")
    tab.press("4")
    expect(tab.page.locator("main")).to_have_attribute("aria-busy", "true")
    tab.release("/move")
    tab.is_told("The same text is there already")
    tab.release("/figures")
    tab.sees("Stored, by week")
    tab.is_told("The same text is there already")
    tab.press("1")
    expect(tab.page.locator("#status")).to_have_text(re.compile(r"^\d+ in all$"))
    tab.faults.clear()  # a browser names each refused request


# To settle


def test_pairs_are_settled_with_a_key_each(tab: Tab, memory: Memory) -> None:
    texts = ("at four", "at five", "by Ada", "by Bea", "in oak", "in elm")
    rows = {f"deck-{text[3:]}": f"The deck is scrubbed {text}." for text in texts}
    memory.import_rows({"id": id, "content": text} for id, text in rows.items())
    order = [*rows]
    for old, new in zip(order[::2], order[1::2], strict=True):
        review(memory, old, new)
    tab.go("settle")
    tab.sees("1 of 3")
    shown = []
    for key in "rks":
        expect(tab.page.locator("#pair-at")).to_contain_text(f"{len(shown) + 1} of")
        shown.append(tab.page.locator(".sides").inner_text())
        tab.press(key)
    tab.sees("Nothing to settle")
    gone = {row["content"] for row in memory.list_items(replaced=True, limit=100)["items"]}
    assert any(text.split()[-1] in shown[0] for text in gone)
    assert memory.review()["count"] == 1
    tab.press("u")  # the last deed: that both stay
    tab.sees("1 of 2")
    assert tab.page.locator(".sides").inner_text() == shown[1]
    tab.press("r")
    tab.is_told("Replaced the older one.")
    tab.page.click("#undo")
    tab.is_told("Undone.")
    tab.sees("1 of 2")
    assert tab.page.locator(".sides").inner_text() == shown[1]
    for place in (1, 2):  # what was taken back, and what was skipped
        expect(tab.page.locator("#pair-at")).to_contain_text(f"{place} of 2")
        tab.press("r")
    tab.sees("Nothing to settle")
    assert memory.review()["count"] == 0
    live = [row for row in memory.list_items(limit=100)["items"] if "deck" in row["content"]]
    assert len(live) == 3


def test_a_pair_says_why_it_is_asked_about(tab: Tab, memory: Memory) -> None:
    old, new = (memory.store(f"The mast is {size} m high.")["id"] for size in ("nine", "ten"))
    review(memory, old, new)
    tab.go("settle")
    tab.sees("80 % likely: “nine” became “ten”.")
    with memory.database.transaction() as connection:  # as `queue_pairs_of` does for sync
        connection.execute("DELETE FROM reviews")
        queue_pairs_of(connection, [old, new])
    tab.go("settle")
    tab.sees("Two machines changed this at the same time")


def test_a_key_held_down_settles_one_pair(tab: Tab, memory: Memory) -> None:
    for part in ("keel", "hull"):
        old, new = (memory.store(f"The {part} is {what}.")["id"] for what in ("wet", "dry"))
        review(memory, old, new)
    count = memory.review()["count"]
    tab.go("settle")
    tab.sees(f"1 of {count}")
    tab.page.keyboard.down("k")
    tab.sees(f"2 of {count}")
    tab.page.keyboard.down("k")  # as a key does that is held down
    tab.page.keyboard.up("k")
    tab.press("4")
    tab.sees("Stored, by week")
    assert memory.review()["count"] == count - 1


def test_who_is_in_a_field_stays_there(tab: Tab, memory: Memory) -> None:
    old, new = (memory.store(f"The shackle is {what}.")["id"] for what in ("old", "new"))
    review(memory, old, new)
    memory.of_project("kiosk").store("Ice is sold out.")
    tab.go("newest")
    tab.page.wait_for_selector("#project option[value=kiosk]", state="attached")
    tab.hold()
    tab.page.keyboard.press("2")
    tab.page.keyboard.press("/")
    tab.release()
    tab.sees("The shackle")
    expect(tab.page.locator("#query")).to_be_focused()
    tab.press("Escape", "2")
    expect(tab.page.locator("#title")).to_be_focused()
    tab.page.focus("#project")
    tab.page.select_option("#project", "kiosk")
    tab.sees("Nothing to settle")
    expect(tab.page.locator("#project")).to_be_focused()


def test_who_has_gone_elsewhere_meanwhile_stays_there(tab: Tab, memory: Memory) -> None:
    old, new = (memory.store(f"The pump is {what}.")["id"] for what in ("old", "new"))
    review(memory, old, new)
    tab.go("settle")
    tab.sees("The pump is")
    tab.hold("/review/replace")
    tab.press("r", "4")
    tab.sees("Figures")
    tab.release("/review/replace")
    tab.is_told("Replaced the older one.")
    tab.sees("Figures")
    tab.press("1")
    tab.sees("memor")
    expect(tab.page.locator("#status")).to_have_text(re.compile(r"^\d+ in all$"))


def test_a_view_that_failed_is_asked_for_again(tab: Tab, memory: Memory) -> None:
    memory.import_rows([{"content": f"Plank number {at}.", "scope": "global"} for at in range(40)])
    tab.go("newest")
    tab.sees("page 1 of 2")
    wait = {"status": 429, "json": {"error": "600 requests a minute: wait, then retry"}}
    places = {
        "**/v1/page/memories?*": ("]", "page 2 of 2"),
        "**/v1/page/figures*": ("4", "Stored, by week"),
    }
    for place, (key, text) in places.items():
        tab.page.route(place, lambda route: route.fulfill(**wait))
        tab.press(key)
        tab.is_told("wait, then retry")
        tab.page.unroute(place)
        tab.press(key)
        tab.sees(text)
    memory.store("The plank is of larch.")
    tab.page.route("**/v1/page/figures*", lambda route: route.fulfill(**wait))
    link = tab.page.get_by_role("link", name="Figures")
    link.click()
    tab.is_told("wait, then retry")
    tab.page.unroute("**/v1/page/figures*")
    link.click()
    expect(tab.page.locator("#status")).to_have_text("")
    assert [fault for fault in tab.faults if "status of 429" not in fault] == []
    tab.faults.clear()


# Figures, and for whom


def test_figures_are_drawn_and_told(tab: Tab, memory: Memory) -> None:
    for week in range(1, 20):
        for at in range(week % 5 + 1):
            day = time.strftime("%Y-%m-%d", time.gmtime(1_770_000_000 + week * 604_800))
            memory.store(f"Gull {at} of week {week} sat on the roof.", created_at=day)
    memory.recall("gull on the roof")
    tab.go("newest")
    tab.sees("Gull")
    tab.press("4")
    tab.sees("Stored, by week")
    assert tab.page.locator("svg.plot").count() >= 2
    assert tab.page.locator("svg.plot rect").count() >= 19
    tab.page.locator("summary").first.click()
    expect(tab.page.locator("details table").first).to_contain_text("Memories")
    tab.page.locator("summary").first.click()


def test_everything_is_reached_by_keys_and_has_a_name(tab: Tab, memory: Memory) -> None:
    id = memory.store("The bell rings at noon.")["id"]
    tab.go("newest")
    tab.sees("bell")
    tab.press("?")
    expect(tab.page.locator("#help")).to_be_visible()
    tab.press("Escape")
    expect(tab.page.locator("#help")).to_be_hidden()
    tab.press("2", "3", "4", "5", "1")
    expect(tab.page.locator("nav a[aria-current]")).to_have_text("Memories")
    for view in ("newest", "search/bell", f"memory/{id}", "settle", "figures"):
        tab.go(view)
        tab.page.wait_for_selector("main h1")
        assert tab.page.evaluate(NAMELESS) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_wrong(
    browser: Any, place: tuple[Path, str], memory: Memory, scheme: str
) -> None:
    """In any view, with a graph, versions, pairs and figures in them."""
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
    old, new = (memory.store(f"The bilge pump is {what}.")["id"] for what in ("loud", "quiet"))
    review(memory, old, new)
    front = memory.store("The bilge pump is new.", replace=old)["id"]
    link(memory, front, new)
    memory.recall("bilge pump")
    told = {}
    tab = Tab(browser, place[1], color_scheme=scheme, reduced_motion="reduce")  # at full opacity
    views = ("newest", "search/pump", f"memory/{front}", "memory/none", "nonsense", "settle")
    for view in (*views, "search/xqzv", "newest?since=2020-01-01", "figures", "graph", "care"):
        tab.go(view)
        tab.page.wait_for_selector("main[aria-busy=false] h1")
        told[view] = tab.page.evaluate(axe + AXE)
    for key, name in {"?": "help", "n": "new"}.items():
        tab.press(key)
        told[name] = tab.page.evaluate(axe + AXE)
        tab.press("Escape")
    tab.go(f"memory/{front}")
    for key, name in {"m": "moving", "x": "sure"}.items():
        tab.press(key)
        told[name] = tab.page.evaluate(axe + AXE)
        tab.press("Escape")
    tab.press("e")
    tab.page.fill("#edit", "The bilge pump is new, and loud.")
    expect(tab.page.locator("#changes ins")).to_be_visible()
    told["edit"] = tab.page.evaluate(axe + AXE)
    tab.press("Escape")
    tab.go("newest")
    tab.press("j", "v")
    told["picked"] = tab.page.evaluate(axe + AXE)
    tab.press("c")
    tab.is_told("Confirmed")
    told["told"] = tab.page.evaluate(axe + AXE)
    stranger = Tab(browser, tab.start + "#", color_scheme=scheme)
    stranger.page.goto(tab.start)
    stranger.sees("A token is needed")
    told["token"] = stranger.page.evaluate(axe + AXE)
    assert {view: faults for view, faults in told.items() if faults} == {}
    for one in (tab, stranger):
        one.context.close()


# What it finds, at how many places, and the first of them.
AXE = """; axe.run().then(found =>
  found.violations.map(one => [one.id, one.nodes.length, one.nodes[0].html]))"""


# Fields and buttons that a screen reader could not name.
NAMELESS = """() => [...document.querySelectorAll("input, select, textarea, button, a, svg")]
  .filter(one => !(one.closest("[aria-hidden=true]") || one.getAttribute("aria-label")
    || one.textContent.trim()
    || (one.labels && [...one.labels].some(label => label.textContent.trim()))))
  .map(one => one.outerHTML)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it(
    browser: Any, place: tuple[Path, str], memory: Memory, scheme: str
) -> None:
    old = memory.store("The lantern burns " + "paraffin" * 20)["id"]
    id = memory.store("The lantern burns whale oil", replace=old)["id"]
    how = {"viewport": {"width": 360, "height": 640}, "color_scheme": scheme}
    tab = Tab(browser, place[1], **how)
    for view in ("newest", "search/lantern", f"memory/{id}", "settle", "figures"):
        tab.go(view)
        tab.page.wait_for_selector("main h1")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360, view
        assert tab.page.evaluate(PALE) == [], view
    back, text = tab.page.evaluate(
        "(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))"
    )
    assert (brightness(back) < brightness(text)) == (scheme == "dark")
    assert tab.faults == []
    tab.context.close()


# Texts and edges of fields with less contrast than WCAG asks for (AA).
PALE = """() => {
  const lit = color => color.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255)
    .map(part => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [.2126, .7152, .0722][at], 0);
  const contrast = (one, other) => {
    const [low, high] = [lit(one), lit(other)].sort((a, b) => a - b);
    return (high + .05) / (low + .05);
  };
  const back = node => {
    const color = getComputedStyle(node).backgroundColor;
    return color === "rgba(0, 0, 0, 0)" ? back(node.parentElement) : color;
  };
  const pale = [...document.querySelectorAll("body *")].filter(node => {
    const style = getComputedStyle(node), field = node.matches("input, select, textarea");
    const tells = !node.disabled && [...node.childNodes].some(one => one.data?.trim());
    return node.checkVisibility() && (tells && contrast(style.color, back(node)) < 4.5
      || field && contrast(style.borderTopColor, back(node.parentElement)) < 3);
  });
  return pale.map(node => node.outerHTML.slice(0, 100));
}"""


def brightness(color: str) -> int:
    return sum(map(int, re.findall(r"\d+", color)[:3]))


def test_a_text_is_written_in_its_own_direction(tab: Tab, memory: Memory) -> None:
    id = memory.store("המפתח נמצא במגירה!\nThe key is in the drawer!")["id"]
    tab.go(f"memory/{id}")
    tab.sees("drawer")
    starts = tab.page.evaluate(STARTS)
    assert starts["hebrew"] > 400, "the first letter stands at the right"
    assert starts["english"] < 100


STARTS = """() => {
  const text = document.querySelector("#body .text p").firstChild, range = document.createRange();
  const left = at => {
    range.setStart(text, at);
    range.setEnd(text, at + 1);
    return range.getBoundingClientRect().left;
  };
  return {hebrew: left(0), english: left(text.data.indexOf("T"))};
}"""


# Much


def test_a_memory_of_a_megabyte_stays_usable(tab: Tab, memory: Memory) -> None:
    lines = [f"Line {at} of the log says nothing of note.\n" for at in range(22_000)]
    old = "".join(lines)[:990_000]
    memory.import_rows([{"id": "long-log", "content": old, "created": "2026-02-01"}])
    new = old.replace("Line 11000 of", "Line 11000 (the storm) of")
    memory.import_rows([{"id": "long-log-2", "content": new, "created": "2026-02-02"}])
    memory.replace("long-log", "long-log-2")
    tab.go("memory/long-log-2")
    tab.sees("Line 1 of the log")
    expect(tab.page.locator("ins").first).to_contain_text("storm")
    tab.page.get_by_role("button", name="Show all").click()
    tab.sees("Line 21000")
    tab.press("e")
    assert tab.page.evaluate("document.querySelector('#edit').value.length") == len(new)
    tab.press("Escape")


def test_versions_tell_what_is_not_shown_and_no_line_ends(tab: Tab, memory: Memory) -> None:
    old = memory.store("One.\r\nTwo.\r\nThree.")["id"]
    new = memory.store("One.\nTwo.\nFour.", replace=old)["id"]
    tab.go(f"memory/{new}")
    expect(tab.page.locator("del")).to_have_text("Three")
    long = memory.store("Five " * 5_000 + "end.", replace=new)["id"]
    tab.go(f"memory/{long}")
    expect(tab.page.locator("ins").first).to_contain_text("Five")
    tab.sees("characters more …")


def test_a_hundred_thousand_memories_stay_usable(
    browser: Any, tmp_path: Path, unpacked: Path
) -> None:
    path = tmp_path / "memory.db"
    with open_memory(path, "demo") as memory:
        memory.store("The first of many.")
        with memory.database.transaction() as connection:
            connection.execute(MANY)
    with browsing(tmp_path, unpacked, "--db", str(path), "--project", "demo") as address:
        tab = Tab(browser, f"{address.split('#')[0]}#{session(address)}")
        tab.go("newest")
        tab.sees("100,001 memories")
        painted = []
        for _ in range(3):
            tab.page.reload()
            tab.sees("100,001 memories")
            painted.append(tab.page.evaluate(PAINTED))
        assert min(painted) < 1_000, painted
        tab.press("]")
        tab.sees("page 2 of")
        tab.press("4")
        tab.sees("Stored, by week")
        assert tab.faults == []
        tab.context.close()


PAINTED = "performance.getEntriesByType('paint')[0].startTime"  # ms
MANY = (
    "INSERT INTO items(id, content, content_type, project_id, created_at, stored_at)"
    " SELECT 'many-' || value, 'Memory number ' || value, 'prose', 'demo',"
    " 1700000000 + value * 500, 1700000000 FROM (WITH RECURSIVE numbers(value) AS"
    " (SELECT 1 UNION ALL SELECT value + 1 FROM numbers LIMIT 100000) SELECT * FROM numbers)"
)


# What one sees of a text


MARKDOWN = """# Tides

High water **today** at *nine*; see `tide.py` and [the table](https://example.org/tides "all").

- [x] ropes
- [ ] fenders
  1. the red one

> said Ada

| Port | m |
|---|---|
| Wick | 3.1 |

```sh
tide --port wick
```
"""


def test_markdown_is_shown_as_it_is_meant(tab: Tab, memory: Memory) -> None:
    id = memory.store(MARKDOWN)["id"]
    tab.go(f"memory/{id}")
    body = tab.page.locator("#body .text")
    expect(body.locator("h3")).to_have_text("Tides")
    expect(body.locator("strong")).to_have_text("today")
    expect(body.locator("em")).to_have_text("nine")
    expect(body.locator("p code")).to_have_text("tide.py")
    link = body.locator("a")
    expect(link).to_have_attribute("href", "https://example.org/tides")
    expect(link).to_have_attribute("rel", "noreferrer noopener")
    expect(body.locator("ul > li")).to_have_text([re.compile("☑ ropes"), re.compile("☐ fenders")])
    expect(body.locator("ul ol li")).to_have_text("the red one")
    expect(body.locator("blockquote")).to_have_text("said Ada")
    expect(body.locator("table td")).to_have_text(["Wick", "3.1"])
    expect(body.locator("pre code")).to_have_text("tide --port wick")


ATTACKS = (
    "[a](javascript:window.hit=1) [b](JaVaScRiPt:window.hit=2) "
    "[c](data:text/html,<script>1</script>) [d](vbscript:x) [e](//evil.example/x) "
    "[f](/v1/export) [g](java\tscript:window.hit=3)",
    "![x](https://evil.example/pixel.png) ![y](data:image/svg+xml,<svg onload=window.hit=4>)",
    "```html\n<script>window.hit=5</script>\n```\n`<img src=x onerror=window.hit=6>`",
    '[<img src=x onerror=window.hit=7>](https://example.org/"onmouseover="window.hit=8)',
    "| <svg onload=window.hit=9> | b |\n|---|---|\n| [x](javascript:window.hit=10) | c |",
    "# <iframe src='javascript:window.hit=11'></iframe>\n> <object data=x>\n- <style>*{}</style>",
    "**<b onclick=window.hit=12>** ~~</s><script>window.hit=13</script>~~ <https://example.org>",
    "\u202e[txt](https://example.org/)\u202c \x00 &lt;script&gt; \\u003cscript\\u003e",
)


def test_markdown_leads_nowhere_but_to_the_web(tab: Tab, memory: Memory) -> None:
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    rows = [
        {"content": f"Raven {at}. {text.replace(chr(0), '')}"} for at, text in enumerate(ATTACKS)
    ]
    memory.import_rows(rows)
    attacked = [row["id"] for row in memory.list_items()["items"] if "Raven" in row["content"]]
    for at, (old, new) in enumerate(zip(attacked[::2], attacked[1::2], strict=True)):
        link(memory, old, new)
        if at < 2:
            review(memory, old, new)
    for view in ("newest", "search/raven", "settle", "graph", *(f"memory/{id}" for id in attacked)):
        tab.go(view)
        tab.page.wait_for_selector("main[aria-busy=false] h1")
        assert tab.page.evaluate("window.hit") is None, view
        bad = "main :is(img, script, iframe, object, style, embed, form, base)"
        assert tab.page.locator(bad).count() == 0, view
        targets = tab.page.evaluate(TARGETS)
        for target in targets:
            assert target.startswith((f"{tab.start}#", "https://example.org/")), (view, target)
    assert [url for url in asked if not url.startswith((tab.start, "about:"))] == []


TARGETS = """[...document.querySelectorAll("main a")].map(one =>
  new URL(one.getAttribute("href"), location).href)"""


def test_a_search_for_nonsense_finds_nothing(tab: Tab, memory: Memory) -> None:
    memory.import_rows([{"content": f"The net number {at} is mended."} for at in range(30)])
    tab.go("search/xqzv blorp wibble")
    expect(tab.page.locator("main h1")).to_have_text("Nothing found")
    assert tab.page.locator(".row").count() == 0


def test_what_may_be_outdated_has_the_newer_one_beside_it(tab: Tab, memory: Memory) -> None:
    texts = ("The harbour office opens at eight.", "The harbour office opens at ten from now on.")
    old, new = (
        memory.store(text, created_at=day)["id"]
        for text, day in zip(texts, ("2026-01-03", "2026-06-03"), strict=True)
    )
    tab.page.route("**/v1/page/search*", functools.partial(with_newer, old, new, texts[1]))
    for answer, told in (("Keep both", "Both stay."), ("Replace", "Replaced the older one.")):
        tab.go("search/when does the harbour office open")
        box = tab.page.locator(".newer")
        expect(box).to_contain_text("A newer memory may have replaced this")
        expect(box).to_contain_text("ten from now on")
        assert tab.page.locator(".row").count() == 1, "the newer one stands beside it alone"
        box.get_by_role("button", name=answer).click()
        tab.is_told(told)
        assert memory.get(old).get("successor") == (new if answer == "Replace" else None)
        tab.page.click("#undo")
        tab.is_told("Undone.")
        assert "ended" not in memory.get(old)


def with_newer(old: str, new: str, text: str, route: Any) -> None:
    """Answer a search with a memory that another one may have made obsolete."""
    found = route.fetch().json()
    rows = {row["id"]: row for row in found["results"]}
    if old in rows:
        facts = {"id": new, "beginning": text, "created": "2026-06-03T00:00:00Z"}
        rows[old]["newer"] = facts | {"probability": 0.9}
    found["results"] = [row for id, row in rows.items() if id in (old, new)]
    route.fulfill(json=found)


# Many at once


def test_many_are_chosen_and_moved_and_that_is_one_step_back(tab: Tab, memory: Memory) -> None:
    memory.of_project("attic").store("A rope of hemp.")
    lines = [{"id": f"rope-{at:02}", "content": f"Rope {at} is {at} m."} for at in range(40)]
    memory.import_rows(lines)
    tab.go("newest")
    tab.sees("page 1 of 2")
    boxes = tab.page.locator(".row input")
    boxes.nth(0).click()
    boxes.nth(4).click(modifiers=["Shift"])
    expect(tab.page.locator("#picked")).to_contain_text("5 chosen")
    tab.press("Escape")
    expect(tab.page.locator("#picked")).to_be_hidden()
    tab.press("j", "v", "j", "j", "V")
    expect(tab.page.locator("#picked")).to_contain_text("3 chosen")
    tab.press("a")
    expect(tab.page.locator("#picked")).to_contain_text("30 chosen")
    tab.page.click("#many-a")
    total = int(tab.page.locator("main").get_attribute("data-total") or 0)
    assert total == len(memory.list_items(scope="all", limit=1000)["items"])
    expect(tab.page.locator("#picked")).to_contain_text(f"{total} chosen")
    tab.move_to("attic")
    tab.is_told(f"Moved {total} memories to attic.")
    expect(tab.page.locator("#picked")).to_be_hidden()
    assert memory.list_items(scope="project")["total"] == 0
    expect(tab.page.locator("#project option[value=attic]")).to_contain_text(f"({total + 1})")
    tab.page.click("#undo")
    tab.is_told("Undone.")
    assert memory.list_items(scope="project")["total"] == total
    expect(tab.page.locator("#project option[value=attic]")).to_contain_text("(1)")
    tab.page.locator(".row input").first.click()
    tab.press("c")
    tab.is_told("Confirmed")
    tab.press("u")
    tab.is_told("Undone.")
    sql = "SELECT count(*) FROM access_log WHERE validation_count > 0"
    assert memory.database.value(sql) == 0
    memory.of_project("attic").forget(memory.of_project("attic").list_items()["items"][0]["id"])


def test_many_are_exported_and_forgotten_after_a_question(tab: Tab, memory: Memory) -> None:
    old = memory.store("Sail 0 is white.")["id"]
    memory.store("Sail 0 is tan.", replace=old)
    memory.import_rows([{"id": f"sail-{at}", "content": f"Sail {at}."} for at in range(1, 6)])
    tab.go("newest")
    tab.sees("Sail 5")
    for box in tab.page.get_by_label(re.compile(r"^Choose: Sail")).all():
        box.click()
    expect(tab.page.locator("#picked")).to_contain_text("6 chosen")
    with tab.page.expect_download() as saved:
        tab.page.click("#many-s")
    rows = [json.loads(line) for line in saved.value.path().read_text("utf-8").splitlines()]
    assert len(rows) == 7, "the replaced version goes with it"
    before = ids(memory)
    tab.press("x")
    expect(tab.page.locator("#sure")).to_contain_text("Forget 6 memories?")
    expect(tab.page.locator("#sure-no")).to_be_focused()
    tab.press("Enter")
    assert ids(memory) == before
    tab.press("x")
    tab.page.click("#sure-yes")
    tab.is_told("Forgot 6 memories.")
    assert not [row for row in memory.export_rows() if "Sail" in row["content"]]
    assert memory.import_rows(rows)["stored"] == 7


def test_a_new_memory_is_written_here(tab: Tab, memory: Memory) -> None:
    tab.go("newest")
    tab.sees("kettle")
    tab.press("n")
    expect(tab.page.locator("#new-text")).to_be_focused()
    tab.page.keyboard.type("The spare key is under the third stone.")
    tab.press("Escape")
    expect(tab.page.locator("#new")).to_be_hidden()
    tab.page.click("#new-button")
    expect(tab.page.locator("#new-text")).to_have_value("The spare key is under the third stone.")
    tab.page.fill("#new-date", "2026-02-03")
    tab.page.select_option("#new-to", "")
    tab.press("Control+Enter")
    tab.is_told("Stored.")
    tab.sees("third stone")
    row = next(row for row in memory.list_items(scope="all")["items"] if "stone" in row["content"])
    assert (row["scope"], row["created"][:10]) == ("global", "2026-02-03")
    tab.press("n")
    expect(tab.page.locator("#new-text")).to_have_value("")
    tab.press("Escape", "u")
    tab.is_told("Undone.")
    assert row["id"] not in ids(memory)


# Time, projects, addresses


def test_the_timeline_is_a_filter(tab: Tab, memory: Memory) -> None:
    lines = [
        {"content": f"Log of week {week}.", "scope": "global"}
        | {"created": time.strftime("%Y-%m-%d", time.gmtime(1_735_700_000 + week * 604_800))}
        for week in range(40)
    ]
    memory.import_rows(lines)
    tab.go("newest?scope=global")
    tab.sees("40 memories")
    box = tab.page.locator("#timeline svg").bounding_box()
    assert box
    middle = box["y"] + box["height"] / 2
    tab.page.mouse.move(box["x"] + box["width"] * 10.5 / 40, middle)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + box["width"] * 14.5 / 40, middle)
    tab.page.mouse.up()
    tab.sees("5 memories")
    expect(tab.page.locator("#filter-since")).to_have_value("2025-03-10")
    tab.page.go_back()
    tab.sees("40 memories")
    slider = tab.page.locator("#timeline")
    slider.focus()
    tab.press("Home", "Shift+ArrowRight", "Shift+ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", re.compile("3 memories"))
    tab.press("Enter")
    tab.sees("3 memories")
    slider.focus()
    tab.press("Delete")
    tab.sees("40 memories")
    tab.page.get_by_role("link", name="This day a year ago").click()
    day = f"{int(time.strftime('%Y')) - 1}-{time.strftime('%m-%d')}"
    expect(tab.page.locator("#filter-until")).to_have_value(day)


def test_all_projects_stand_beside_one(tab: Tab, memory: Memory) -> None:
    other = memory.of_project("lagoon")
    id = other.store("The lagoon has flamingos.")["id"]
    tab.go("newest")
    tab.page.select_option("#project", "*")
    tab.sees("flamingos")
    tab.sees("kettle")
    names = tab.page.locator("#project option").all_inner_texts()
    assert {"demo (1) · this folder", "lagoon (1)"} <= set(names)
    assert len({name.split(" (")[0] for name in names}) == len(names), "a project has one name"
    tab.go("search/flamingos")
    tab.sees("1 result")
    tab.page.select_option("#project", "demo")
    tab.sees("Nothing found")
    tab.page.get_by_role("button", name="Search all projects").click()
    tab.sees("1 result")
    tab.page.locator(".row .open").click()
    tab.press("x")
    tab.page.click("#sure-yes")
    tab.is_told("Forgotten.")
    expect(tab.page.locator("#project option[value=lagoon]")).to_have_count(0)
    assert id not in {row["id"] for row in other.export_rows()}


@pytest.mark.parametrize("view", ["nonsense", "memory/", "figures/2", "%"])
def test_an_unknown_address_says_so(tab: Tab, view: str) -> None:
    tab.go(view)
    expect(tab.page.locator("main h1")).to_have_text("There is no page here")
    tab.page.get_by_role("link", name="All memories").click()
    tab.sees("kettle")


def test_a_memory_opens_in_a_tab_of_its_own(tab: Tab, memory: Memory) -> None:
    id = memory.store("The gull has a ring.")["id"]
    tab.go("newest")
    tab.sees("gull")
    stranger = tab.context.new_page()
    stranger.add_init_script("sessionStorage.clear()")
    stranger.goto(f"{tab.start}#/memory/{id}")
    expect(stranger.locator("main")).to_contain_text("The gull has a ring.", timeout=60_000)
    tab.faults.clear()


# Links, figures, care


def test_the_graph_shows_clusters_and_is_walked_by_keys(tab: Tab, memory: Memory) -> None:
    texts = {"tide": "The tide table hangs by door {}.", "lamp": "Lamp {} burns oil of whales."}
    found = {
        name: [memory.store(t.format(n))["id"] for n in (7, 8, 9)] for name, t in texts.items()
    }
    for rows in found.values():
        link(memory, *rows[:2])
        link(memory, *rows[1:])
    tab.go("graph")
    tab.sees("6 memories are linked")
    assert tab.page.locator("#graph .node").count() == 6
    titles = " ".join(tab.page.locator("#graph .title").all_text_contents())
    assert "tide" in titles
    assert "lamp" in titles
    names = tab.page.locator("#graph .name").all_text_contents()
    assert len(set(names)) == len(names)
    tab.page.locator("#graph a").first.focus()
    tab.press("ArrowRight")
    held = tab.page.evaluate("document.activeElement.getAttribute('aria-label')")
    tab.press("Enter")
    tab.sees("Linked memories")
    tab.sees(held)
    tab.press("3")
    tab.page.uncheck("#kind-related")
    tab.sees("No links of these kinds")
    tab.page.check("#kind-related")
    tab.page.click("#as-list")
    expect(tab.page.locator("#clusters li")).to_have_count(6)


def test_figures_lead_to_what_they_count(tab: Tab, memory: Memory) -> None:
    lines = [{"content": f"Knot {at}.", "created": f"2026-0{at}-15"} for at in range(1, 8)]
    memory.import_rows(lines)
    memory.recall("Knot 3.")
    tab.go("figures")
    tab.sees("Recalled most")
    tab.sees("never recalled")
    bar = tab.page.locator("svg.plot a").first
    bar.hover()
    expect(tab.page.locator("#tip")).to_contain_text("1 memory")
    bar.focus()
    tab.press("End", "ArrowRight", "Enter")
    expect(tab.page.locator("#filter-since")).not_to_have_value("")
    tab.page.go_back()
    tab.page.get_by_role("link", name="that no question has found").click()
    tab.sees("memories")
    expect(tab.page.locator("#filter-never_recalled")).to_have_value("true")


def test_care_checks_brings_in_and_takes_out(tab: Tab, memory: Memory, tmp_path: Path) -> None:
    rows = [{"id": f"bolt-{at}", "content": f"Bolt {at} is loose."} for at in range(4)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + "no row\n", "utf-8")
    tab.go("care")
    tab.page.set_input_files("#import-file", file)
    tab.sees("4 memories would come in")
    tab.sees("1 line cannot be read")
    assert not [row for row in memory.export_rows() if "Bolt" in row["content"]]
    tab.page.click("#import-yes")
    tab.is_told("4 memories came in. 1 line could not be read.")
    assert len([row for row in memory.export_rows() if "Bolt" in row["content"]]) == 4
    tab.page.click("#check")
    tab.is_told("Everything is fine.")
    expect(tab.page.locator(".checks .broken")).to_have_count(0)
    with tab.page.expect_download() as saved:
        tab.page.click("#export")
    exported = [json.loads(line) for line in saved.value.path().read_text("utf-8").splitlines()]
    assert {row["id"] for row in exported} == {row["id"] for row in memory.export_rows()}
    with tab.page.expect_download() as saved:
        tab.page.click("#back-up")
    with open_memory(Path(saved.value.path()), "demo") as copy:
        assert ids(copy) == ids(memory)


def test_care_makes_tokens_and_revokes_them(tab: Tab, memory: Memory) -> None:
    tab.go("care")
    tab.page.fill("#token-name", "buoy")
    tab.page.check("#token-reads")
    tab.page.click("#token-add")
    secret = tab.page.locator("#token-value").input_value()
    assert memory.tokens()["tokens"][0] | {"created": ""} == {
        **{"name": "buoy", "reads": True, "created": ""}
    }
    headers = {"Authorization": f"Bearer {secret}"}
    request = urllib.request.Request(f"{tab.start}v1/stats", headers=headers)
    urllib.request.urlopen(request, timeout=TIMEOUT).close()
    assert "used" in memory.tokens()["tokens"][0]
    tab.page.reload()
    tab.sees("today")
    tab.page.get_by_role("button", name="Revoke the token of buoy").click()
    tab.page.click("#sure-yes")
    tab.is_told("Revoked the token of buoy.")
    with pytest.raises(HTTPError, match="401"):
        urllib.request.urlopen(request, timeout=TIMEOUT)


def test_who_may_only_read_is_offered_nothing_else(
    browser: Any, place: tuple[Path, str], memory: Memory
) -> None:
    secret = memory.add_token("reader", reads=True)["token"]
    tab = Tab(browser, f"{place[1].split('#')[0]}#{secret}")
    tab.go("newest")
    tab.sees("kettle")
    for name in ("#new-button", "#care-link", ".row input"):
        expect(tab.page.locator(f"{name}:visible")).to_have_count(0)
    tab.page.locator(".row .open").first.click()
    tab.sees("History")
    expect(tab.page.locator(".actions button")).to_have_count(0)
    for path in ("care", "doctor", "backup", "sync"):
        request = urllib.request.Request(f"{tab.start}v1/page/{path}")
        request.add_header("Authorization", f"Bearer {secret}")
        with pytest.raises(HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=TIMEOUT)
    memory.revoke_token("reader")
    tab.context.close()


def test_on_a_phone_results_come_first(
    browser: Any, place: tuple[Path, str], memory: Memory
) -> None:
    memory.import_rows([{"content": f"Shell {at} is white."} for at in range(12)])
    how = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    tab = Tab(browser, place[1], **how)
    tab.go("newest?oldest=true")
    tab.sees("Shell")
    expect(tab.page.locator("#filters")).to_be_hidden()
    expect(tab.page.locator("#filters-button")).to_have_text("Filters (1)")
    assert tab.page.locator(".row").first.bounding_box()["y"] < 240
    assert tab.page.evaluate(SMALL) == []
    tab.page.tap("#filters-button")
    expect(tab.page.locator("#filters")).to_be_visible()
    expect(tab.page.locator("#timeline")).to_have_count(1)
    tab.page.tap("#filters-button")
    tab.page.locator(".row .pick").nth(1).tap()
    expect(tab.page.locator("#picked")).to_contain_text("1 chosen")
    tab.page.tap("#many-n")
    tab.page.locator(".row .open").first.tap()
    tab.sees("History")
    assert tab.page.evaluate(SMALL) == []
    assert tab.faults == []
    tab.context.close()


# What one presses that is lower or narrower than a finger (44 pixels), outside of texts.
SMALL = """() => [...document.querySelectorAll("button, select, input, nav a, .pick, .open, .back")]
  .filter(one => one.checkVisibility() && !one.closest(".unseen, .pick"))
  .map(one => [one, one.getBoundingClientRect()])
  .filter(([, box]) => box.height && (box.height < 43.5 || box.width < 43.5))
  .map(([one, box]) => one.outerHTML.slice(0, 80) + " " + box.width + "x" + box.height)"""


def test_nothing_jumps_while_it_loads(tab: Tab, memory: Memory) -> None:
    memory.import_rows([{"content": f"Pebble {at}."} for at in range(40)])
    tab.page.add_init_script(SHIFTS)
    for view in ("newest", "figures", "settle"):
        tab.go(view)
        tab.page.wait_for_selector("main[aria-busy=false] h1")
        assert tab.page.evaluate("window.shifted") < 0.01, view


SHIFTS = """window.shifted = 0; new PerformanceObserver(list => {
  for (const one of list.getEntries()) window.shifted += one.value;
}).observe({type: "layout-shift", buffered: true});"""


def test_the_page_is_one_small_file() -> None:
    text = (Path(__file__).parent.parent / "assets" / "page.html").read_text("utf-8")
    assert len(text.encode()) <= 250_000
    assert "innerHTML" not in text.replace("// ", "")
    assert re.findall(r'(?:src|href)="(?!#|data:)', text) == []


# Pictures


@pytest.mark.skipif(not SHOTS, reason="pictures are made with SHOTS=DIR")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_pictures(browser: Any, tmp_path: Path, unpacked: Path, scheme: Any, size: str) -> None:
    """Each view, of memories that somebody may have had for a year."""
    path = tmp_path / "memory.db"
    with open_memory(path, "harbour-api") as memory:
        changed = fill_with_a_year(memory)
    options = ("--db", str(path), "--project", "harbour-api")
    how = {"width": 1360, "height": 850} if size == "desktop" else {"width": 390, "height": 844}
    with browsing(tmp_path, unpacked, *options) as address:
        start = f"{address.split('#')[0]}#{session(address)}"
        tab = Tab(browser, start, viewport=how, color_scheme=scheme)
        tab.context.add_init_script("if (location.host) sessionStorage.setItem('project', '*')")
        views = {
            **{name: name for name in ("settle", "graph", "figures", "care")},
            "search": "search/how many requests a minute may a client send",
            "versions": f"memory/{changed}",
            "nothing": "search/xqzv blorp wibble",
            "memories": "newest",
        }
        for name, view in views.items():
            tab.go(view)
            tab.page.wait_for_selector("main[aria-busy=false] h1")
            if name == "memories":
                tab.page.locator(".row input").nth(1).click()
                tab.page.locator(".row input").nth(3).click(modifiers=["Shift"])
            shot = f"{SHOTS}/{name}-{size}-{scheme}.png"
            tab.page.screenshot(path=shot, animations="disabled")
        tab.context.close()


def fill_with_a_year(memory: Memory) -> str:
    """Store what stands in page_demo.jsonl, recall some of it, and change a memory; its id."""
    rows = (Path(__file__).parent / "page_demo.jsonl").read_text("utf-8").splitlines()
    memory.import_rows(rows)
    memory.consolidate()
    stored = [*memory.export_rows()]
    for project in ("harbour-api", "lighthouse-web", "notes"):
        own = [row["id"] for row in stored if row.get("project") == project]
        for at, id in enumerate(own[1:], 1):
            link(memory, own[at // 2 if at % 5 else at - 1], id)
    questions = ("when do we deploy", "retry backoff", "who owns the gateway", "tomatoes")
    for question in (*questions, "gateway timeouts", *questions[:2], "when do we deploy"):
        memory.recall(question)
    old = next(row for row in memory.export_rows() if "Feature flags" in row["content"])
    text = old["content"].replace("`flags.toml`", "`config/flags.toml`").replace("90", "60")
    changed = memory.store(f"{text} The script `tools/flags` lists them.", replace=old["id"])
    memory.add_token("laptop")
    memory.add_token("dashboard", reads=True, project="harbour-api")
    return changed["id"]


# What tests share


def link(memory: Memory, a: str, b: str) -> None:
    with memory.database.transaction() as connection:
        sql = "INSERT INTO graph_edges(from_id, to_id, edge_type, created_at) VALUES(?, ?, ?, 0)"
        connection.execute(sql, (a, b, "related"))


def review(memory: Memory, old: str, new: str) -> None:
    with memory.database.transaction() as connection:
        connection.execute("INSERT OR REPLACE INTO reviews VALUES(?, ?, 0.8, 0)", (old, new))


def show_twin(tab: Tab, memory: Memory, text: str) -> None:
    """Show a memory that cannot be moved, since one of every project says the same."""
    id = memory.store(text)["id"]
    memory.store(text, scope="global")
    tab.go(f"memory/{id}")
    tab.sees(text[:12])


def ids(memory: Memory) -> set[str]:
    return {row["id"] for row in memory.list_items(scope="all", limit=1000)["items"]}
