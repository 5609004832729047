"""What only a lab's page shows: probabilities of tokens, models side by side, cards of runs; formulas, code, tables."""

from dataclasses import replace

import pytest

from pages import ask, finished, ready, script, texts, violations
from servers import ScriptedEngine, running_server, tiny_model

CARD = {
    "stage": "sft", "params": 1_180_000, "arch": "qwen3", "layers": 2, "width": 32, "optimizer": "adana", "lr": 0.001,
    "color": "#228B22", "steps": 400, "curve": {"metric": "val/loss", "points": [[1, 4.2], [200, 3.6], [400, 3.5]]},
    "examples": ["What is 3 + 4?", "Who are you?"],
}  # fmt: skip


WRONG_FORMULAS = [
    r"\unknown{x} }", "^ _ ^", "{" * 300 + "x", r"\begin{matrix} } & \\", r"\frac\sqrt\left",
    r"\begin{constructor}x\end{constructor}",
    r"\href{javascript:alert(1)}{x}", "x" * 3000 + "}",
]  # fmt: skip


@pytest.fixture(scope="module")
def two_models():
    """A server of a base model and of one that is trained from it, with a card."""
    base, tuned = replace(tiny_model(2048), name="base"), replace(tiny_model(2048), name="tuned", step=400, card=CARD)
    engines = [ScriptedEngine(base, lambda text: f"base: {text}"), ScriptedEngine(tuned, script)]
    with running_server(base, engine=engines[0], others=[(tuned, engines[1])]) as server:
        server.engines = engines
        yield server


@pytest.fixture
def lab(context, two_models):
    made = context.new_page()
    made.goto(two_models.url)
    ready(made)
    return made


@pytest.mark.slow
def test_the_tokens_of_an_answer_have_their_probabilities(page):
    ask(page, "sum")
    finished(page)
    page.get_by_label("Token probabilities").click()
    assert page.locator(".assistant .tokens").text_content() == "It is 12*7 = 8484."
    page.locator(".token").first.hover()
    assert page.locator("#token-card li").all_inner_texts() == ["I\n50.0%", "?\n25.0%"]
    assert page.locator(".token").first.get_attribute("aria-label") == "I 50.0%; instead ? 25.0%"
    page.mouse.move(0, 0)
    assert not page.locator("#token-card").is_visible()
    page.reload()  # they are kept
    page.get_by_label("Token probabilities").click()
    assert page.locator(".token").count() == 9


def test_models_answer_side_by_side_and_a_card_tells_of_their_runs(lab, two_models):
    assert lab.locator("#examples button").all_inner_texts() == CARD["examples"]
    assert lab.locator("#card").inner_text() == "1.18M · adana · step 400"
    assert lab.locator("#card .curve").count() == 1
    lab.get_by_label("Model", exact=True).select_option("compare")
    assert lab.locator("#examples button").all_inner_texts() == CARD["examples"]
    ask(lab, "one")
    finished(lab, 2)
    assert lab.locator(".columns .message").all_inner_texts() == ["base\n\nbase: one", "tuned\n\nYou said: one"]
    ask(lab, "two")  # each model sees its own answers
    finished(lab, 4)
    assert "base: one<|assistant_end|>" in two_models.engines[0].prompts[-1]
    assert "You said: one<|assistant_end|>" in two_models.engines[1].prompts[-1]
    lab.get_by_label("Write another answer").first.click()
    lab.locator(".count", has_text="2/2").wait_for()
    lab.reload()
    ready(lab)
    finished(lab, 4)
    assert lab.get_by_label("Model", exact=True).input_value() == "*"
    lab.locator("#card").click()
    assert "validation loss: 4.2 to 3.5" in lab.locator("#cards").inner_text()
    assert "adana, peak rate 0.001" in lab.locator("#cards").inner_text()


@pytest.mark.slow
def test_the_selector_chooses_who_answers(lab, two_models):
    lab.get_by_label("Model", exact=True).select_option("base")
    ask(lab, "one")
    finished(lab)
    lab.get_by_label("Model", exact=True).select_option("tuned")
    ask(lab, "two")
    finished(lab, 2)
    assert texts(lab) == ["one", "base: one", "two", "You said: two"]
    assert lab.locator(".assistant h2:visible").all_inner_texts() == ["base", "tuned"]
    lab.reload()
    ready(lab)
    assert lab.get_by_label("Model", exact=True).input_value() == "tuned"


PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.mark.slow
@pytest.mark.parametrize("context", [{"color_scheme": "dark"}, PHONE], ids=["dark", "phone"], indirect=True)
def test_a_comparison_has_no_violation_and_fits(lab):
    pytest.importorskip("axe_playwright_python")
    assert violations(lab) == []
    lab.get_by_label("Model", exact=True).select_option("compare")
    ask(lab, "markdown")
    finished(lab, 2)
    assert violations(lab) == []
    assert lab.evaluate("document.documentElement.scrollWidth") <= lab.evaluate("innerWidth")
    lab.locator("#card").click()
    assert violations(lab) == []


@pytest.mark.slow
def test_markdown_is_shown_as_elements(page):
    ask(page, "markdown")
    finished(page)
    content = page.locator(".assistant .content").first
    style = "(node, name) => getComputedStyle(node)[name]"
    assert content.locator("h3").inner_text() == "Title"
    assert content.locator("strong").inner_text() == "bold"
    assert content.locator("em").all_inner_texts() == ["slanted"]
    assert content.locator("ol > li").count() == 2
    assert content.locator("ol ul li").inner_text() == "inner"
    assert content.locator("ol").evaluate(style, "listStyleType") == "decimal"
    assert content.locator("> ul").evaluate(style, "listStyleType") == "disc"
    assert content.locator("li input[type=checkbox]").is_checked()
    assert content.locator("td").all_inner_texts() == ["1", "2"]
    assert content.locator("td").last.evaluate(style, "textAlign") == "right"
    assert content.locator("blockquote").inner_text() == "quoted"
    assert content.locator("pre").inner_text() == 'print("x < y")  # 1'
    assert content.locator("pre .is-string").inner_text() == '"x < y"'
    assert content.locator("pre .is-comment").inner_text() == "# 1"
    assert content.locator("math[display=block] mfrac").count() == 1
    assert content.locator("math[display=block] munderover").count() == 1
    assert content.locator("p math").get_attribute("alttext") == "x^2"
    assert "It costs $5, and" in content.inner_text()
    assert "snake_case_name and 2 * 3 * 4" in content.inner_text()
    assert content.locator("p", has_text="שלום").evaluate(style, "direction") == "rtl"
    links = content.locator("a").evaluate_all("links => links.map(link => [link.href, link.rel, link.target])")
    safe = ["noopener noreferrer nofollow", "_blank"]
    assert links == [["https://example.org/a?b=1", *safe], ["https://example.com/", *safe]]


SHOWN = """async ({ text, sums }) => {
  const { show } = await import("./markdown.js");
  const node = document.createElement("div");
  show(node, text, sums);
  return [node.textContent, [...new Set([...node.querySelectorAll("*")].map(({ tagName }) => tagName))].join(" ")];
}"""


@pytest.mark.slow
def test_formulas_become_mathml(page):
    """Each a pair of LaTeX and the text and the elements that it becomes."""
    for source, text, elements in [
        (r"\sqrt[3]{x}", "x3", "mroot mi mn"),
        (r"\left( \frac{a}{b} \right)", "(ab)", "mrow mo mfrac mi"),
        (r"\begin{cases} 1 & x > 0 \\ 0 \end{cases}", "{1x>00", "mrow mo mtable mtr mtd mn mi"),
        (r"\lim_{n \to \infty} a_n", None, "munder mi mrow mo msub"),
        (r"\mathbb{R}^{n \times 2}", None, "msup mi mrow mo mn"),
        (r"\hat\theta \leq \text{a b}", None, "mover mi mo mtext"),
        *((wrong, wrong, "CODE") for wrong in WRONG_FORMULAS),
    ]:
        for form in ("$$%s$$", "say $$%s$$", r"\[%s\]"):
            got = page.evaluate(SHOWN, {"text": form % source, "sums": []})
            assert text is None or got[0].removeprefix("say ") == text, form % source
            assert set(elements.split()) <= set(got[1].split()), form % source
    for text in ("$x$", r"\(x\)"):
        assert page.evaluate(SHOWN, {"text": text, "sums": []}) == ["x", "P math mi"]


@pytest.mark.slow
def test_a_calculation_is_shown_wherever_it_stands(page):
    text = '# h\n\n`code` [a](http://b "c") ![a](http://b) http://b $x$ \\(y\\) **b** <i>\n\n'
    text += "| a |\n|---|\n| b |\n\n```js\nx\n```\n$$x$$\n\n[r]: http://b\n"
    sums = [{"expression": "1 < 2", "result": "&", "at": 0}]
    for place in range(len(text) + 1):
        shown, _ = page.evaluate(SHOWN, {"text": text, "sums": [{**sums[0], "at": place}]})
        assert shown.count("1 < 2 = &") == 1, text[:place]
    shown, _ = page.evaluate(SHOWN, {"text": "x" * 200_000, "sums": sums})
    assert shown.endswith("x1 < 2 = &")


@pytest.mark.slow
def test_cut_code_has_a_shadow_at_its_edge(page):
    ask(page, "wide")
    finished(page)
    code = page.locator("pre")
    assert code.evaluate("node => node.scrollWidth > node.clientWidth")
    assert code.evaluate("node => getComputedStyle(node).backgroundImage").count("linear-gradient") == 4
