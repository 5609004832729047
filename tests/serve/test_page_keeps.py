"""The page loses nothing: reloads, several tabs, branches, other conversations meanwhile, files."""

import json

import pytest

from pages import LONG, ask, finished, ready, texts, titles


def grown(page, letters: int = 50) -> None:
    page.wait_for_function("n => document.querySelector('.assistant .content')?.textContent.length > n", arg=letters)


def complete(page) -> None:
    page.wait_for_function("() => document.querySelector('.assistant')?.dataset.state === 'done'")


def test_an_answer_goes_on_after_a_reload_and_the_address_names_the_conversation(page):
    ask(page, "long")
    grown(page)
    seen = len(texts(page)[1])
    address = page.url
    assert "#/c/" in address
    page.fill("#prompt", "a draft")
    page.reload()
    grown(page, seen - 1)  # at once what there was
    complete(page)
    assert texts(page) == ["long", LONG.strip()]
    assert page.url == address
    assert page.input_value("#prompt") == "a draft"


@pytest.mark.slow
def test_opening_another_conversation_does_not_stop_an_answer(page):
    ask(page, "long")
    grown(page)
    page.get_by_role("button", name="New conversation").first.click()
    ask(page, "short")
    finished(page)
    page.get_by_role("link", name="long", exact=True).click()
    complete(page)
    assert texts(page) == ["long", LONG.strip()]
    page.go_back()
    page.wait_for_function("() => document.title.startsWith('short')")
    assert texts(page)[0] == "short"


@pytest.mark.slow
def test_an_answer_whose_tab_was_closed_is_kept_as_far_as_it_went(page, context):
    ask(page, "long")
    grown(page, 400)
    page.wait_for_timeout(500)
    address = page.url
    page.close()
    other = context.new_page()
    other.goto(address)
    other.get_by_text("Interrupted.").wait_for()
    assert len(texts(other)[1]) >= 200
    other.get_by_role("button", name="Continue").click()
    complete(other)
    assert texts(other) == ["long", LONG.strip()]


@pytest.mark.slow
def test_two_tabs_lose_nothing_of_each_other(page, context, page_server):
    ask(page, "root")
    finished(page)
    other = context.new_page()
    other.goto(page.url)
    other.locator(".assistant").wait_for()
    assert texts(other) == ["root", "You said: root"]
    other.locator(".user").hover()
    other.get_by_label("Edit and send again").click()
    ask(page, "long")  # both write into one conversation at the same time
    other.get_by_label("Message to edit").fill("changed here")
    other.keyboard.press("Enter")
    finished(other)
    finished(page, 2)
    assert texts(other) == ["changed here", "You said: changed here"]
    assert texts(page) == ["root", "You said: root", "long", LONG.strip()]
    for tab in (page, other):
        tab.locator(".user .count", has_text="/2").wait_for()
    other.reload()
    other.locator(".user .count:visible").wait_for()
    other.locator(".user").first.hover()
    seen = [texts(other)]
    for label in ("The version before", "The next version"):
        if other.get_by_label(label).first.is_enabled():
            other.get_by_label(label).first.click()
            seen.append(texts(other))
    assert ["root", "You said: root", "long", LONG.strip()] in seen
    assert ["changed here", "You said: changed here"] in seen
    other.get_by_role("button", name="New conversation").first.click()
    ask(other, "of the other tab")
    finished(other)
    page.get_by_role("link", name="of the other tab").wait_for()
    page.get_by_label("Rename: root").click()
    page.keyboard.type("named here")
    page.keyboard.press("Enter")
    other.get_by_role("link", name="named here").wait_for()
    other.get_by_label("Delete: of the other tab").click()
    page.get_by_role("link", name="of the other tab").wait_for(state="detached")
    other.get_by_role("button", name="Undo").click()
    page.get_by_role("link", name="of the other tab").wait_for()


@pytest.mark.slow
def test_a_question_below_an_answer_that_another_tab_writes_is_lost_in_neither(page, context):
    other = context.new_page()
    other.goto(page.url)
    ready(other)
    ask(page, "long")
    grown(page, 1)
    other.goto(page.url)
    grown(other, 1)
    ask(other, "of tab two")
    finished(other, 2)
    finished(page, 2)
    whole = ["long", LONG.strip(), "of tab two", "You said: of tab two"]
    for tab in (page, other, page, other):
        assert texts(tab) == whole
        tab.reload()
        ready(tab)
        finished(tab, 2)
    other.evaluate(STALE, {"id": page.url.rpartition("/")[2], "content": "wo"})  # a tab that lags behind
    page.reload()
    ready(page)
    assert texts(page) == whole


STALE = """async ({ id, content }) => {
  const store = await import("./store.js");
  const conversation = (await store.loadEach([id])).get(id);
  const messages = (await store.loadMessages(id)).filter(({ role }) => role === "assistant");
  await store.save(conversation, messages.map((each) => ({ ...each, content, state: "writing" })));
}"""


@pytest.mark.slow
def test_two_tabs_that_continue_one_answer_write_it_once(page, context, page_server):
    prompts = page_server.worker.engine.prompts
    before = len(prompts)
    ask(page, "long")
    grown(page, 100)
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Continue").wait_for()
    other = context.new_page()
    other.goto(page.url)
    ready(other)
    buttons = [tab.locator(".carry-on").element_handle() for tab in (page, other)]
    for button in buttons:
        button.evaluate("node => node.click()")  # before it hears of the other tab
    for tab in (page, other, page):
        complete(tab)
        assert texts(tab) == ["long", LONG.strip()]
        tab.reload()
        ready(tab)
    assert len(prompts) == before + 2


@pytest.mark.slow
def test_an_answer_of_another_tab_is_seen_as_it_grows(page, context):
    other = context.new_page()
    other.goto(page.url)  # before the question: loading the page may take longer than the answer
    ready(other)
    ask(page, "long")
    grown(page, 1)
    other.goto(page.url)
    other.get_by_text("Being written in another tab.").wait_for()
    complete(page)
    complete(other)
    assert texts(other) == ["long", LONG.strip()]


@pytest.mark.slow
def test_conversations_are_found_renamed_deleted_and_grouped_by_date(page):
    for text in ("apples", "pears"):
        page.get_by_role("button", name="New conversation").first.click()
        ask(page, text)
        finished(page)
    page.reload()
    ready(page)
    assert titles(page) == ["pears", "apples"]
    assert page.locator(".period").all_inner_texts() == ["Today"]
    page.get_by_label("Search conversations").fill("SAID: APP")
    page.wait_for_function("() => document.querySelectorAll('.pick').length === 1")
    assert titles(page) == ["apples"]
    page.get_by_label("Search conversations").fill("plums")
    page.get_by_text("No conversation has these words.").wait_for()
    page.get_by_label("Search conversations").fill("")
    page.get_by_role("link", name="apples", exact=True).click()
    page.wait_for_function("() => document.title.startsWith('apples')")
    assert texts(page) == ["apples", "You said: apples"]
    page.get_by_label("Rename: apples").click()
    page.keyboard.type("Fruit")
    page.keyboard.press("Enter")
    assert page.locator("#title").inner_text() == "Fruit"
    page.get_by_label("Delete: Fruit").click()
    page.get_by_role("button", name="Undo").wait_for()
    assert titles(page) == ["pears"]
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("link", name="Fruit").wait_for()
    changed = """async () => {
      const opened = await new Promise((done) => {
        const asked = indexedDB.open("danalab", 1);
        asked.onsuccess = () => done(asked.result);
      });
      const records = opened.transaction("conversations", "readwrite").objectStore("conversations");
      const all = await new Promise((done) => {
        const asked = records.getAll();
        asked.onsuccess = () => done(asked.result);
      });
      all.forEach((each, place) => records.put({ ...each, updated: Date.now() - (place ? 90 : 1) * 86400000 }));
      await new Promise((done) => (records.transaction.oncomplete = done));
    }"""
    page.evaluate(changed)
    page.reload()
    ready(page)
    first, second = page.locator(".period").all_inner_texts()
    assert first == "Yesterday"
    assert second.split()[1].isdigit()


@pytest.mark.slow
def test_conversations_go_to_a_file_and_into_another_browser(page, browser, page_server, tmp_path):
    ask(page, "sum")
    finished(page)
    ask(page, "second")
    finished(page, 2)
    page.get_by_label("Write another answer").last.click()
    page.locator(".assistant .count", has_text="2/2").wait_for()
    finished(page, 2)
    with page.expect_download() as one:
        page.get_by_label("Export this conversation").click()
    line = one.value.path().read_text()
    messages = json.loads(line)["messages"]
    call = [{"type": "python", "text": "12*7"}, {"type": "python_output", "text": "84"}]
    assert messages[1]["content"] == [{"type": "text", "text": "It is "}, *call, {"type": "text", "text": "84."}]
    page.get_by_role("button", name="Settings", exact=True).click()
    with page.expect_download() as everything:
        page.get_by_role("button", name="Export all").click()
    (tmp_path / "all.json").write_bytes(everything.value.path().read_bytes())
    (tmp_path / "chats.jsonl").write_text(line + json.dumps({"messages": [{"role": "user", "content": "hi"}]}))
    (tmp_path / "bad.json").write_text("{}")
    context = browser.new_context()
    other = context.new_page()
    other.set_default_timeout(30_000)
    other.goto(page_server.url)
    ready(other)
    for name, said in (
        ("all.json", "1 conversation imported."),
        ("all.json", "1 conversation imported."),
        ("chats.jsonl", "2 conversations imported."),
        ("bad.json", "bad.json: line 1 is no conversation"),
    ):
        other.set_input_files("#file", tmp_path / name)
        other.get_by_text(said).wait_for()
    assert sorted(titles(other)) == ["hi", "sum", "sum"]
    other.get_by_role("link", name="sum").last.click()
    other.locator(".assistant").last.wait_for()
    assert other.locator(".content .sum").text_content() == "12*7 = 84"
    ask(other, "next")
    other.locator(".message", has_text="You said: next").wait_for()
    assert "<|python_start|>12*7<|python_end|>" in page_server.worker.engine.prompts[-1]
    context.close()


PROTOTYPE = ["constructor", "__proto__", "toString", "hasOwnProperty", "valueOf", "columns x"]


def archive(conversation: str, contents: list[str], **details) -> dict:
    """A file with one conversation, whose messages follow each other."""
    stamps = {"titled": 0, "created": 1, "updated": 2, "changed": 3}
    ids = [f"{conversation}{number or ''}" for number in range(len(contents))]
    messages = [
        {"id": ids[number], "conversation": conversation, "parent": ids[number - 1] if number else None,
         "created": number, "role": ("user", "assistant")[number % 2], "content": content, **details}
        for number, content in enumerate(contents)
    ]  # fmt: skip
    known = {"id": conversation, "kind": "chat", "title": conversation, "leaf": ids[-1], **stamps}
    return {"format": "danalab-conversations", "version": 1, "conversations": [known], "messages": messages}


def import_text(page, path, text: str) -> None:
    path.write_text(text)
    page.set_input_files("#file", path)


@pytest.mark.slow
def test_names_of_the_language_are_names_like_others(page, tmp_path):
    form = "$$\\begin{N}x\\end{N}$$ $\\N$ $\\text{N}$\n\n```N\nN\n```\n[N]: N\n[N]\n\n"
    text = "".join(form.replace("N", name) for name in PROTOTYPE)
    for name in PROTOTYPE:
        sums = [{"expression": name, "result": name, "at": 3}]
        file = archive(name, ["q", text], model=name, sums=sums, tokens=[[name, 0.5, 0, [[name, 0.5]]]])
        import_text(page, tmp_path / "file.json", json.dumps(file))
        page.get_by_text("1 conversation imported.").wait_for()
        page.get_by_text("1 conversation imported.").evaluate("node => node.textContent = ''")
        page.get_by_role("link", name=name, exact=True).click()
        page.wait_for_function("name => document.title.startsWith(name)", arg=name)
        page.reload()
        ready(page)
        page.get_by_label("Token probabilities").click()
        assert page.locator(".token").all_inner_texts() == [name]
        assert page.evaluate("({}).x") is None
    assert sorted(titles(page)) == sorted(PROTOTYPE)
    ask(page, "\n".join(PROTOTYPE))
    finished(page, 2)


@pytest.mark.slow
def test_a_file_with_a_fault_changes_nothing_and_the_fault_is_named(page, tmp_path):
    good = archive("c", ["q", "a"])

    def changed(part: str, number: int = 0, **fields) -> str:
        rows = [{**row, **(fields if place == number else {})} for place, row in enumerate(good[part])]
        return json.dumps({**good, part: rows})

    stats = {"prompt": 1, "tokens": "many", "first": 0, "seconds": 1}
    for text, said in [
        ("", "the file is empty"),
        ("{}", "line 1 is no conversation; it must be"),
        ('{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "line 1 is no conversation; it must be"),
        (json.dumps({**good, "messages": None}), "messages is object; it must be a list"),
        (changed("messages", role="robot"), 'messages[0].role is "robot"; it must be one of user, assistant'),
        (changed("messages", 1, content=None), "messages[1].content is null; it must be a text"),
        (changed("messages", 1, stats=stats), "messages[1].stats is"),
        (changed("messages", 1, tokens=[["a", "high", 0, []]]), "messages[1].tokens is"),
        (changed("messages", 1, sums=[{"at": 1}]), "messages[1].sums is"),
        (changed("messages", 1, id="c"), 'messages[1].id is "c" once more; it must differ'),
        (changed("messages", 0, id="\ud800"), "it must be a text without control characters"),
        (changed("messages", 0, parent="c1"), "messages[0] is an answer to itself"),
        (changed("messages", 0, conversation="d"), 'messages[0].conversation is "d"; it must be one of the file'),
        (changed("conversations", kind="talk"), 'conversations[0].kind is "talk"; it must be one of chat, compare'),
    ]:
        import_text(page, tmp_path / "file.json", text)
        page.get_by_text(f"file.json: {said}" if text != changed("messages", 0, id="\ud800") else said).wait_for()
    assert titles(page) == []


@pytest.mark.slow
def test_messages_of_equal_ids_and_without_parents_are_all_there(page, tmp_path):
    files = [archive("c", ["first", "one"]), archive("d", ["second", "two"])]
    for each in files:
        for number, message in enumerate(each["messages"]):
            message.update(id=f"m{number}", parent="m0" if number else "gone")
        each["conversations"][0].update(leaf="m1", title=each["messages"][0]["content"])
    for each in (*files, files[1]):
        import_text(page, tmp_path / "file.json", json.dumps(each))
        page.get_by_text("1 conversation imported.").wait_for()
        page.get_by_text("1 conversation imported.").evaluate("node => node.textContent = ''")
    for title, answer in (("first", "one"), ("second", "two")):
        page.get_by_role("link", name=title).click()
        page.wait_for_function("name => document.title.startsWith(name)", arg=title)
        assert texts(page) == [title, answer]


@pytest.mark.slow
def test_long_conversations_and_lists_are_shown_in_parts(page, tmp_path):
    long = archive("long talk", [f"message {number}" for number in range(5000)])
    for number in range(300):
        long["conversations"].append(
            {**long["conversations"][0], "id": f"c{number}", "title": f"c{number}", "updated": 0}
        )
    import_text(page, tmp_path / "file.json", json.dumps(long))
    page.get_by_text("301 conversations imported.").wait_for()
    assert len(titles(page)) == 200
    page.get_by_role("button", name="Show more (101)").click()
    assert len(titles(page)) == 301
    page.get_by_role("link", name="long talk").click()
    page.wait_for_function("() => document.title.startsWith('long talk')")
    assert texts(page) == [f"message {number}" for number in range(4900, 5000)]
    page.get_by_role("button", name="Show earlier messages (4,900)").click()
    page.get_by_role("button", name="Show earlier messages (4,800)").wait_for()
    assert texts(page)[0] == "message 4800"
    assert page.locator(".user", has_text="message 4900").is_visible()
    with page.expect_response("**/v1/chat/completions") as answered:
        ask(page, "hello")
    assert answered.value.status == 200  # neither too many messages nor too long


@pytest.mark.slow
def test_storage_that_another_page_has_filled_does_no_harm(page):
    sums = '[{"id": "a", "title": "", "messages": [{"role": "assistant", "content": "", "calculations": [1]}]}]'
    old = json.dumps(
        [
            {"id": "b", "title": "of before", "updated": 1, "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "It is 4.",
                 "calculations": [{"expression": "2+2", "result": "4", "position": 6}]},
            ]}
        ]
    )  # fmt: skip
    for value in ("{", "null", '[{"id": 1}, {"id": "a", "title": "ok", "messages": []}]', "[" * 9999, sums, old):
        page.evaluate("value => localStorage.setItem('danalab.conversations', value)", value)
        page.evaluate("value => localStorage.setItem('danalab.settings', value)", value)
        page.reload()
        ready(page)
    assert titles(page) == ["of before"]
    page.get_by_role("link", name="of before").click()
    page.locator(".assistant").wait_for()
    assert texts(page) == ["q", "It is 2+2 = 44."]
    broken = """async () => {
      const opened = await new Promise((done) => {
        const asked = indexedDB.open("danalab", 1);
        asked.onsuccess = () => done(asked.result);
      });
      const tx = opened.transaction(["conversations", "messages"], "readwrite");
      tx.objectStore("conversations").put({ id: "x" });
      const circle = { conversation: "b", role: "user", content: "", created: 1 };
      tx.objectStore("messages").put({ id: "m1", parent: "m2", ...circle });
      tx.objectStore("messages").put({ id: "m2", parent: "m1", ...circle });
      tx.objectStore("messages").put({ id: "m3", conversation: "b", role: 7 });
      await new Promise((done) => (tx.oncomplete = done));
      sessionStorage.setItem("danalab.left", '{"writing": [{"message": 1}], "draft": 5}');
    }"""
    page.evaluate(broken)
    page.reload()
    ready(page)
    page.get_by_role("button", name="New conversation").first.click()
    ask(page, "still here")
    finished(page)


@pytest.mark.slow
def test_without_a_storage_the_page_says_so_and_works(context, page_server):
    context.add_init_script("Object.defineProperty(window, 'indexedDB', { get() { throw new Error('closed') } })")
    page = context.new_page()
    page.goto(page_server.url)
    ready(page)
    ask(page, "hello")
    finished(page)
    page.get_by_text("conversations are lost with the tab").wait_for()
    page.get_by_role("button", name="New conversation").first.click()
    page.get_by_role("link", name="hello").click()
    page.locator(".assistant").wait_for()
    assert texts(page) == ["hello", "You said: hello"]
