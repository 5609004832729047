"""The page in Chromium: writing, stopping, editing; text of a model is never code; keyboard, phone, accessibility."""

import json

import pytest

from danalab.chat.dialects import iter_conversations
from pages import LONG, ask, finished, texts, titles, violations

SAID = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def test_a_question_is_answered_edited_and_answered_anew(page):
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
    page.reload()
    page.locator(".pick").click()
    assert texts(page) == ["changed", "You said: changed"]


def test_a_calculation_is_a_chip_and_is_sent_with_the_next_question(page, page_server):
    ask(page, "sum")
    finished(page)
    assert page.locator(".content .sum").text_content() == "12*7 = 84"
    ask(page, "and now?")
    finished(page, 2)
    learned = "It is <|python_start|>12*7<|python_end|><|output_start|>84<|output_end|> 84.<|assistant_end|>"
    assert learned in page_server.worker.engine.prompts[-1]


def test_conversations_are_imported_in_every_dialect_and_exported_as_sft_reads_them(page, tmp_path):
    lines = [
        {"messages": [{"role": "system", "content": "Be kind."}, *SAID]},
        SAID,
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
        {"instruction": "hi", "output": "hello"},
        {"prompt": "hi", "completion": "hello"},
    ]
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page.set_input_files("#file", file)
    page.locator("#toast", has_text="5 conversations imported.").wait_for()
    assert titles(page) == ["hi"] * 5
    page.get_by_role("button", name="Settings", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    exported = [each for _, each in iter_conversations(download.value.path())]
    assert sorted(each.messages[0].role for each in exported) == ["system"] + ["user"] * 4
    assert all([message.text for message in each.messages[-2:]] == ["hi", "hello"] for each in exported)
    broken = tmp_path / "broken.jsonl"
    broken.write_text(json.dumps(lines[0]) + "\n{}\n")
    page.set_input_files("#file", broken)
    page.locator("#toast", has_text="broken.jsonl: line 2: a line is").wait_for()


@pytest.mark.slow
def test_stop_keeps_what_was_written_and_the_answer_can_be_continued(page, page_server):
    ask(page, "long")
    page.wait_for_function("() => document.querySelector('.assistant .content').textContent.length > 50")
    page.get_by_role("button", name="Stop").click()
    finished(page)
    assert page.locator(".note").inner_text() == "Stopped."
    assert 50 < len(texts(page)[1]) < len(LONG)
    assert not page_server.worker.engine.running
    page.get_by_role("button", name="Continue").click()
    page.wait_for_function("() => document.querySelector('.assistant').dataset.state === 'done'")
    assert texts(page) == ["long", LONG.strip()]


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
    page.locator(".pick").click()
    page.locator(".assistant").wait_for()
    assert page.evaluate("window.hacked") is None


@pytest.mark.slow
def test_settings_reach_the_server_and_stay(page):
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("Instructions").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.3")
    page.get_by_label("Top-k").fill("9")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Answer tokens").fill("5")
    page.get_by_label("Colours").select_option("dark")
    page.get_by_role("button", name="Done").click()
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "hello")
    body = json.loads(sent.value.post_data)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["top_k"], body["seed"], body["max_tokens"]) == (0.3, 9, 7, 5)
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
    page.locator(".assistant[data-state=done]").wait_for()
    assert texts(page) == ["hello", "You said: hello"]


@pytest.mark.slow
def test_a_connection_that_breaks_keeps_what_was_written_and_goes_on_from_there(page):
    piece = json.dumps({"choices": [{"delta": {"content": "You sa"}, "finish_reason": None}]})
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=f"data: {piece}\n\n"))
    ask(page, "hello")
    page.locator(".failure:visible").wait_for()
    assert texts(page) == ["hello", "You sa"]
    assert (
        page.locator(".assistant .failure").inner_text()
        == "The connection ended before the answer did. Try again"
    )
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="Try again").click()
    page.locator(".assistant[data-state=done]").wait_for()
    assert texts(page) == ["hello", "You said: hello"]


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
    page.locator("#welcome").wait_for()
    assert texts(page) == []
    labels = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        labels.add(
            page.evaluate(
                "(({ ariaLabel, textContent }) => ariaLabel || textContent)(document.activeElement)"
            )
        )
    assert {"Settings", "one", "Delete: one"} <= {label.strip() for label in labels}


PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
SIZES = [{"viewport": {"width": 1280, "height": 860}}, PHONE]
LOOKS = [{**size, "color_scheme": scheme} for size in SIZES for scheme in ("light", "dark")]
LOOK_NAMES = ["desktop-light", "desktop-dark", "phone-light", "phone-dark"]


@pytest.mark.slow
@pytest.mark.parametrize("context", LOOKS, ids=LOOK_NAMES, indirect=True)
def test_axe_finds_no_violation(page):
    pytest.importorskip("axe_playwright_python")
    assert violations(page) == []
    ask(page, "markdown")
    finished(page)
    ask(page, "sum")
    finished(page, 2)
    assert violations(page) == []
    page.get_by_role("button", name="Settings", exact=True).click()
    assert violations(page) == []


@pytest.mark.slow
@pytest.mark.parametrize("context", [PHONE], indirect=True)
def test_a_phone_shows_all_without_scrolling_sideways(page):
    ask(page, "markdown")
    finished(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not page.locator("#sidebar").is_visible()
    page.get_by_role("button", name="Conversations", exact=True).click()
    page.locator(".pick").wait_for()
    page.keyboard.press("Escape")
    page.locator("#sidebar").wait_for(state="hidden")
    page.get_by_role("button", name="Settings", exact=True).click()
    outside = """([dialog]) => [...dialog.querySelectorAll("*")].filter((node) => {
      const [inner, outer] = [node.getBoundingClientRect(), dialog.getBoundingClientRect()];
      return node.checkVisibility() && (inner.right > outer.right || inner.left < outer.left);
    }).map(({ outerHTML }) => outerHTML)"""
    for width in (390, 360, 320):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.locator("#settings").evaluate_all(outside) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
@pytest.mark.parametrize("context", [PHONE], indirect=True)
def test_the_open_list_of_a_phone_keeps_the_focus_and_gives_it_back(page):
    def focused() -> str:
        return page.evaluate("document.activeElement.closest('#sidebar, #column')?.id")

    ask(page, "apples")
    finished(page)
    opener = page.get_by_role("button", name="Conversations", exact=True)
    opener.click()
    for _ in range(8):
        page.keyboard.press("Tab")
        assert focused() != "column"
    pytest.importorskip("axe_playwright_python")
    assert violations(page) == []
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "open-sidebar"
    opener.click()
    page.get_by_label("Delete: apples").click()
    page.get_by_role("button", name="Undo").click()
    page.locator(".assistant").wait_for()
    assert texts(page) == ["apples", "You said: apples"]
