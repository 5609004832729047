"""The chat page in Chromium: what its tests share. A model writes what `script` says, so a test knows its answers."""

ATTACK = """<script>window.hacked = 1</script> <img src=x onerror="window.hacked = 1">
[a](javascript:window.hacked=1) [b](JaVaScRiPt:alert(1)) ![c](data:text/html,<script>window.hacked=1</script>)
<iframe srcdoc="<script>parent.hacked=1</script>"></iframe> <svg onload="window.hacked=1">
$\\text{<script>window.hacked = 1</script>} \\href{javascript:alert(1)}{x}$ <<<b onclick=x>1</b>=<i>2</i>>>

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

- [x] done

| a | b |
|:--|--:|
| 1 | 2 |

> quoted

```python
print("x < y")  # 1
```

$$\\frac{1}{2} \\sum_{i=1}^n x_i$$

It costs $5, and $x^2$ is not $6.

שלום

https://example.org/a?b=1. [named](https://example.com)
"""
LONG = "word " * 250
KNOWN = {
    "attack": ATTACK,
    "markdown": MARKDOWN,
    "long": LONG,
    "sum": "It is <|python_start|>12*7<|python_end|> 84.",
    "wide": f"```python\n{'x = 1; ' * 80}\n```",
}


def script(question: str) -> str:
    return KNOWN.get(question, f"You said: {question}")


def ask(page, text: str) -> None:
    page.fill("#prompt", text)
    page.get_by_role("button", name="Send", exact=True).click()


def finished(page, count: int = 1) -> None:
    """Wait until `count` answers are shown, all finished."""
    page.wait_for_function(
        "n => document.querySelectorAll('.assistant').length === n"
        " && !document.querySelector('.writing, .assistant[data-state=writing]')",
        arg=count,
    )


def texts(page) -> list[str]:
    return page.locator(".message .content").all_inner_texts()


def ready(page) -> None:
    page.wait_for_function("() => document.body.dataset.ready === 'yes'")


def titles(page) -> list[str]:
    return page.locator(".pick").all_inner_texts()


def violations(page) -> list[tuple[str, str]]:
    """What axe finds."""
    from axe_playwright_python.sync_playwright import Axe

    page.wait_for_timeout(250)  # transitions
    return [(each["id"], each["nodes"][0]["html"]) for each in Axe().run(page).response["violations"]]
