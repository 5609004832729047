"""The page in Chromium: writing, stopping, editing, keeping; text of a model never becomes code; accessibility."""

import json
import shutil

import pytest

from servers import ScriptedEngine, running_server, tiny_model

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

ATTACK = """<script>window.hacked = 1</script> <img src=x onerror="window.hacked = 1">
[a](javascript:window.hacked=1) [b](JaVaScRiPt:alert(1)) ![c](data:text/html,<script>window.hacked=1</script>)
<iframe srcdoc="<script>parent.hacked=1</script>"></iframe> <svg onload="window.hacked=1">

| <b onclick=x>t</b> | x |
|---|---|
| <script>window.hacked = 1</script> | y |

```html"><script>window.hacked = 1</script>
</code></pre><script>window.hacked = 1</script>
```
"""
MARKDOWN = """# Title

**bold** and *slanted* and `code` and snake_case_name and 2 * 3 * 4

1. one
2. two
   - inner

| a | b |
|---|---|
| 1 | 2 |

> quoted

```python
print("x < y")
```

https://example.org/a?b=1. [named](https://example.com)
"""
LONG = "word " * 400


def script(question: str) -> str:
    known = {"attack": ATTACK, "markdown": MARKDOWN, "long": LONG, "sum": "It is <|python_start|>12*7<|python_end|>."}
    return known.get(question, f"You said: {question}")


@pytest.fixture(scope="module")
def page_server():
    model = tiny_model(8192)
    with running_server(model, engine=ScriptedEngine(model, script, seconds=0.001)) as server:
        yield server


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser, page_server, request):
    context = browser.new_context(**getattr(request, "param", {}))
    made = context.new_page()
    made.set_default_timeout(60_000)
    faults = []
    made.on("pageerror", lambda error: faults.append(str(error)))
    made.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
    made.goto(page_server.url)
    made.wait_for_function("() => document.getElementById('model').textContent === 'tiny'")
    yield made
    assert faults == []
    context.close()


def ask(page, text: str) -> None:
    page.fill("#prompt", text)
    page.keyboard.press("Enter")


def finished(page, count: int = 1) -> None:
    """Wait until there are `count` answers, all finished."""
    page.wait_for_function(
        "n => document.querySelectorAll('.assistant .note:not(:empty)').length === n"
        " && !document.querySelector('.writing')",
        arg=count,
    )


def texts(page) -> list[str]:
    return page.locator(".message .content").all_inner_texts()


def test_a_question_is_answered_edited_and_answered_anew(page, page_server):
    ask(page, "first")
    finished(page)
    assert texts(page) == ["first", "You said: first"]
    ask(page, "second")
    finished(page, 2)
    page.locator(".user").first.hover()
    page.get_by_label("Edit and send again").first.click()
    page.get_by_label("Message to edit").fill("changed")
    page.keyboard.press("Enter")
    finished(page)
    assert texts(page) == ["changed", "You said: changed"]
    page.get_by_label("Write another answer").click()
    finished(page)
    assert texts(page) == ["changed", "You said: changed"]
    assert "tokens" in page.locator(".note").inner_text()


def test_the_next_question_is_sent_with_the_calculations_before_it(page, page_server):
    ask(page, "sum")
    finished(page)
    assert page.locator(".sum").text_content() == "12*7 = 84"
    ask(page, "and now?")
    finished(page, 2)
    learned = "It is <|python_start|>12*7<|python_end|><|output_start|>84<|output_end|>.<|assistant_end|>"
    assert learned in page_server.worker.engine.prompts[-1]


def test_stop_keeps_what_was_written_and_frees_the_slot(page, page_server):
    ask(page, "long")
    page.wait_for_function("() => document.querySelector('.assistant .content').textContent.length > 50")
    page.get_by_role("button", name="Stop").click()
    finished(page)
    assert page.locator(".note").inner_text() == "Stopped."
    assert 50 < len(texts(page)[1]) < len(LONG)
    assert not page_server.worker.engine.running


def test_a_models_text_never_becomes_code(page):
    ask(page, "attack")
    finished(page)
    assert page.evaluate("window.hacked") is None
    inside = page.locator(".content :is(script, img, iframe, svg, [onclick], [onerror], [onload])")
    assert inside.count() == 0
    links = page.locator(".content a").evaluate_all("links => links.map(link => link.protocol)")
    assert set(links) <= {"http:", "https:", "mailto:"}
    assert "<script>window.hacked = 1</script>" in texts(page)[1]
    page.reload()  # the stored conversation is no better
    page.locator(".pick").first.click()
    assert page.evaluate("window.hacked") is None


@pytest.mark.slow
def test_markdown_is_shown_as_elements(page):
    ask(page, "markdown")
    finished(page)
    content = page.locator(".assistant .content")
    assert content.locator("h3").inner_text() == "Title"
    assert content.locator("strong").inner_text() == "bold"
    assert content.locator("em").all_inner_texts() == ["slanted"]
    assert content.locator("ol > li").count() == 2
    assert content.locator("ol ul li").inner_text() == "inner"
    assert content.locator("td").all_inner_texts() == ["1", "2"]
    assert content.locator("blockquote").inner_text() == "quoted"
    assert content.locator("pre").inner_text() == 'print("x < y")'
    assert "snake_case_name and 2 * 3 * 4" in content.inner_text()
    links = content.locator("a").evaluate_all("links => links.map(link => [link.href, link.rel, link.target])")
    safe = ["noopener noreferrer nofollow", "_blank"]
    assert links == [["https://example.org/a?b=1", *safe], ["https://example.com/", *safe]]


@pytest.mark.slow
def test_several_conversations_survive_a_reload(page):
    ask(page, "apples")
    finished(page)
    page.get_by_role("button", name="New conversation").first.click()
    ask(page, "pears")
    finished(page)
    page.reload()
    assert page.locator(".pick").all_inner_texts() == ["pears", "apples"]
    page.get_by_role("button", name="apples", exact=True).click()
    assert texts(page) == ["apples", "You said: apples"]
    page.get_by_label("Delete: apples").click()
    assert page.locator(".pick").all_inner_texts() == ["pears"]
    page.get_by_role("button", name="Undo").click()
    assert page.locator(".pick").all_inner_texts() == ["pears", "apples"]


@pytest.mark.slow
def test_storage_that_another_page_has_filled_does_no_harm(page):
    sums = '[{"id": "a", "title": "", "messages": [{"role": "assistant", "content": "", "calculations": [1]}]}]'
    for value in ("{", "null", '[{"id": 1}, {"id": "a", "title": "ok", "messages": []}]', "[" * 9999, sums):
        page.evaluate("value => localStorage.setItem('danalab.conversations', value)", value)
        page.evaluate("value => localStorage.setItem('danalab.settings', value)", value)
        page.reload()
        page.wait_for_function("() => document.getElementById('model').textContent === 'tiny'")
    ask(page, "still here")
    finished(page)


@pytest.mark.slow
def test_settings_reach_the_server_and_stay(page):
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("Instructions").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.3")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Answer tokens").fill("5")
    page.get_by_label("Colours").select_option("dark")
    page.get_by_role("button", name="Done").click()
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "hello")
    body = json.loads(sent.value.post_data)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["seed"], body["max_tokens"]) == (0.3, 7, 5)
    finished(page)
    page.reload()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


@pytest.mark.slow
def test_an_error_is_shown_and_can_be_tried_again(page):
    page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(page, "hello")
    page.locator(".failure:visible").wait_for()
    assert page.locator(".assistant .failure").inner_text() == "The server cannot be reached. Try again"
    assert not page.locator(".assistant").get_by_label("Copy the message").is_visible()
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="Try again").click()
    finished(page)
    assert texts(page) == ["hello", "You said: hello"]


@pytest.mark.slow
def test_a_connection_that_breaks_keeps_what_was_written_and_says_so(page):
    piece = json.dumps({"choices": [{"delta": {"content": "Half an"}, "finish_reason": None}]})
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=f"data: {piece}\n\n"))
    ask(page, "hello")
    page.locator(".failure:visible").wait_for()
    assert texts(page) == ["hello", "Half an"]
    assert page.locator(".assistant .failure").inner_text() == "The connection ended before the answer did. Try again"


@pytest.mark.slow
def test_everything_is_reached_by_the_keyboard(page):
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    finished(page)
    assert texts(page)[0] == "one\ntwo"
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.value") == "one\ntwo"
    page.keyboard.press("Escape")
    page.keyboard.press("Control+Shift+O")
    assert texts(page) == []
    labels = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        labels.add(page.evaluate("(({ ariaLabel, textContent }) => ariaLabel || textContent)(document.activeElement)"))
    assert {"Settings", "What is 12 * 7?", "one two"} <= {label.strip() for label in labels}


PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
SIZES = [{"viewport": {"width": 1280, "height": 860}}, PHONE]
LOOKS = [{**size, "color_scheme": scheme} for size in SIZES for scheme in ("light", "dark")]
LOOK_NAMES = ["desktop-light", "desktop-dark", "phone-light", "phone-dark"]
MARKED = [
    pytest.param(look, id=name, marks=[] if name == "phone-dark" else pytest.mark.slow)
    for look, name in zip(LOOKS, LOOK_NAMES, strict=True)
]


@pytest.mark.slow
@pytest.mark.parametrize("page", MARKED, indirect=True)
def test_axe_finds_no_violation(page):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()

    def check() -> None:
        page.wait_for_timeout(250)  # transitions
        found = axe.run(page).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []

    check()
    page.fill("#prompt", "markdown")
    page.get_by_role("button", name="Send", exact=True).click()
    finished(page)
    check()
    page.get_by_role("button", name="Settings", exact=True).click()
    check()


@pytest.mark.slow
@pytest.mark.parametrize("page", [PHONE], indirect=True)
def test_a_phone_shows_all_without_scrolling_sideways(page):
    page.fill("#prompt", "markdown")
    page.get_by_role("button", name="Send", exact=True).click()
    finished(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not page.locator("#sidebar").is_visible()
    page.get_by_role("button", name="Conversations", exact=True).click()
    page.locator(".pick").wait_for()
    page.keyboard.press("Escape")
    page.locator("#sidebar").wait_for(state="hidden")


@pytest.mark.slow
@pytest.mark.parametrize("page", [PHONE], indirect=True)
def test_the_open_list_of_a_phone_keeps_the_focus_and_gives_it_back(page):
    def focused() -> str:
        return page.evaluate("(({ id, className }) => id || className)(document.activeElement)")

    page.fill("#prompt", "apples")
    page.get_by_role("button", name="Send", exact=True).click()
    finished(page)
    opener = page.get_by_role("button", name="Conversations", exact=True)
    opener.click()
    order = ["new", "pick", "icon remove", "close-sidebar"]
    for key, expected in (("Tab", order[1:] + order), ("Shift+Tab", order[-2::-1] + order[::-1])):
        for each in expected:
            page.keyboard.press(key)
            assert focused() == each
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.wait_for_timeout(250)  # the list slides in
    assert axe.run(page).response["violations"] == []
    page.keyboard.press("Escape")
    assert focused() == "open-sidebar"
    opener.click()
    page.get_by_label("Delete: apples").click()
    assert focused() == "new"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")  # undo
    assert texts(page) == ["apples", "You said: apples"]
    assert focused() == "prompt"
    opener.click()
    page.set_viewport_size({"width": 1280, "height": 860})
    page.get_by_label("Edit and send again").click()  # the wide page is not covered
