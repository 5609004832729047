"""Compression of a tokenizer: bytes per token on several kinds of text, compared with GPT-2's."""

import inspect
import textwrap

from danalab.data.tokenizers.base import Tokenizer

ENGLISH = """The river had risen in the night, and by morning the meadow below the mill stood under a hand's breadth of
brown water. Nobody in the village was surprised. It happened most years, when the snow went all at once, and people had
learned to keep their hay on the upper floor and their boots beside the door. The miller's daughter rowed across to see
what the current had brought: two fence posts, a kettle without a lid, and somebody's left glove.
"Well," she said to the dog, "that is one more thing that we did not have yesterday." """
GERMAN = """Im Frühjahr, wenn der Schnee auf einmal schmilzt, steht die Wiese unterhalb der Mühle unter Wasser.
Das überrascht im Dorf schon lange niemanden mehr; das Heu liegt auf dem Boden, und die Stiefel stehen neben der Tür.
Größere Schäden gab es zuletzt vor dreißig Jahren, als die alte Brücke weggerissen wurde."""
RUSSIAN = """Весной, когда снег тает сразу, луг под мельницей стоит под водой. В деревне к этому давно привыкли: сено
держат наверху, а сапоги ставят у двери. Последний раз мост снесло тридцать лет назад."""
CHINESE = """春天雪一下子融化的时候，磨坊下面的草地总是被水淹没。
村里的人早就习惯了：干草放在楼上，靴子放在门边。三十年前那座旧桥被冲走了。"""
NUMBERS = """year,month,level_cm,flow_m3s
2019,3,412,88.25
2020,3,389,71.90
2021,4,455,103.48
1024 * 768 = 786432; 3.14159265 / 2 = 1.570796325; 17:45:09 on 2024-02-29"""
MATHS = r"""\begin{align} m_t &= \beta(t)\, m_{t-1} + (1 - \beta(t))\, g_t, \qquad
\beta(t) = 1 - \frac{\delta}{\delta + t}, \\
\theta_{t+1} &= \theta_t - \eta \left( \frac{g_t + \alpha(t)\, m_t}{\sqrt{v_t} + \epsilon} \right)
\end{align}"""


def samples() -> dict[str, str]:
    """Kind -> text; the code is a module of the standard library."""
    return {
        "english": ENGLISH,
        "python": inspect.getsource(textwrap),
        "german": GERMAN,
        "russian": RUSSIAN,
        "chinese": CHINESE,
        "numbers": NUMBERS,
        "latex": MATHS,
    }


def measure(
    tokenizer: Tokenizer, texts: dict[str, str], reference: Tokenizer | None = None
) -> dict[str, tuple[int, int, int | None]]:
    """(bytes, tokens, the reference's tokens) of each text."""
    return {
        name: (len(text.encode()), len(tokenizer.encode(text)), reference and len(reference.encode(text)))
        for name, text in texts.items()
    }
