"""Ways to type a sum that no training data has, and how many a model answers.

`python tests/sum_forms.py speedrun/rl` asks 100 forms that training draws and these 100, each with five sums whose
numbers training leaves out.
"""

import random
import re
import sys
from pathlib import Path
from typing import Any

from danalab.chat.answers import answer_all
from danalab.chat.messages import Conversation
from danalab.chat.tasks import Arithmetic
from danalab.chat.tasks.generated import asked_sum
from danalab.inference import Request, SamplingParameters
from danalab.serve.chat_model import ChatModel, open_chat_model

UNSEEN = {
    "+": (
        "What do you get for {0}+{1}?", "what might {0} + {1} be", "Hi there, {0}+{1}?",
        "I'd like to know {0} + {1}.", "please tell me how much {0}+{1} is", "{0} plus {1} equals what?",
        "{0} plus {1} is how many?", "Can I get {0} + {1}?", "What number is {0} + {1}?", "Hmm, {0} + {1}?",
        "what is the outcome of {0} + {1}?", "Could you add {0} and {1}?", "Mind adding {0} and {1}?",
        "Can you add {0} to {1}?", "Mind {0} + {1}?", "if I add {0} and {1}, what do I get?",
        "the sum of {0} and {1} please tell me", "sum: {0} + {1}", "What do {0} and {1} add up to?",
        "Let's add {0} and {1}.", "What's the total if you add {0} and {1}?",
        "I had {0} and got {1} more: {0} + {1}", "math question: {0} + {1}", "Try {0} + {1}.",
        "{0} + {1}, off hand", "Yo, {0}+{1}", "do {0} + {1}", "Say {0} + {1}", "answer {0}+{1}",
        "What about {0} + {1}?", "How about {0}+{1}?", "Hello! Could you compute {0} + {1}?",
        "I can't work out {0} + {1}", "{0} + {1} anyone?",
    ),
    "-": (
        "What do you get for {0}-{1}?", "what might {0} - {1} be", "Hi there, {0}-{1}?",
        "I'd like to know {0} - {1}.", "please tell me how much {0}-{1} is", "{0} minus {1} equals what?",
        "{0} minus {1} is how many?", "Can I get {0} - {1}?", "What number is {0} - {1}?", "Hmm, {0} - {1}?",
        "what is the outcome of {0} - {1}?", "Could you subtract {1} from {0}?",
        "Mind subtracting {1} from {0}?", "if I take {1} from {0}, what is left?", "math question: {0} - {1}",
        "Try {0} - {1}.", "{0} - {1}, off hand", "Yo, {0}-{1}", "do {0} - {1}", "Say {0} - {1}",
        "answer {0}-{1}", "What about {0} - {1}?", "How about {0}-{1}?",
        "Hello! Could you compute {0} - {1}?", "I can't work out {0} - {1}", "{0} - {1} anyone?",
        "What remains of {0} - {1}?", "Let's subtract {1} from {0}.", "How much is left: {0} minus {1}",
        "Difference: {0} - {1}", "In my head {0} - {1} is difficult", "Can you take {1} away from {0}?",
        "what is left if {1} is taken from {0}",
    ),
    "*": (
        "What do you get for {0}*{1}?", "what might {0} * {1} be", "Hi there, {0}*{1}?",
        "I'd like to know {0} * {1}.", "please tell me how much {0}*{1} is", "{0} times {1} equals what?",
        "{0} times {1} is how many?", "Can I get {0} x {1}?", "What number is {0} * {1}?",
        "Hmm, {0} times {1}?", "what is the outcome of {0} * {1}?", "Could you multiply {0} by {1}?",
        "Mind multiplying {0} and {1}?", "if I multiply {0} by {1}, what do I get?",
        "math question: {0} * {1}", "Try {0} * {1}.", "{0} * {1}, off hand", "Yo, {0}*{1}", "do {0} * {1}",
        "Say {0} x {1}", "answer {0}x{1}", "What about {0} * {1}?", "How about {0}*{1}?",
        "Hello! Could you compute {0} x {1}?", "I can't work out {0} * {1}", "{0} * {1} anyone?",
        "Let's multiply {0} by {1}.", "Product: {0} * {1}", "Can you multiply {0} with {1}?",
        "In my head {0} x {1} is difficult", "{0} rows of {1}: {0} * {1}", "How big is {0} times {1}",
        "What comes out of {0} x {1}?",
    ),
}  # fmt: skip


def forms() -> dict[str, list[tuple[str, str]]]:
    """(sign, form) of 100 forms that training draws, and of those that it does not."""
    draw = random.Random(1)
    typed: dict[str, str] = {}
    while len(typed) < 100:
        sign = draw.choice("+-*")
        typed.setdefault(asked_sum(draw, "{0}", sign, "{1}"), sign)
    unseen = [(sign, form) for sign, each in UNSEEN.items() for form in each]
    return {"typed": [(sign, form) for form, sign in typed.items()], "unseen": unseen}


def problems(sign: str, count: int, largest: int) -> list[tuple[str, str, str]]:
    """(left, right, result) of sums that training leaves out."""
    found = []
    for problem in Arithmetic(max=largest, operations=sign, split="test", size=count):
        match = re.fullmatch(r"(\d+)\D(\d+)", problem.data["expression"])
        assert match is not None
        found.append((match[1], match[2], problem.answer))
    return found


def right_answers(
    model: ChatModel,
    engine: Any,
    asked_in: dict[str, list[tuple[str, str]]],
    largest: int = 99,
    count: int = 5,
) -> dict[str, dict[str, int]]:
    """Form -> right answers of `count`, for each kind of forms `asked_in`."""
    sampling = SamplingParameters(temperature=0, max_tokens=40)
    found: dict[str, dict[str, int]] = {}
    for kind, known in asked_in.items():
        asked = []
        for number, (sign, form) in enumerate(known):
            for left, right, result in problems(sign, count * (number + 1), largest)[-count:]:
                asked.append((form, form.format(left, right), result))
        prompts = [model.format.render_prompt(Conversation.ask(question)) for _, question, _ in asked]
        answers = answer_all(engine, model.format, [Request(prompt, sampling) for prompt in prompts])
        found[kind] = dict.fromkeys((form for _, form in known), 0)
        for (form, _, result), answer in zip(asked, answers, strict=True):
            message = model.format.parse(answer.tokens)
            spoken = "" if message is None else message.spoken
            found[kind][form] += re.findall(r"-?\d+", spoken)[-1:] == [result]
    return found


if __name__ == "__main__":
    opened = open_chat_model(Path(sys.argv[1]))
    for kind, right in right_answers(opened, opened.engine(), forms()).items():
        print(f"{kind}: {sum(right.values()) / 5 / len(right):.1%} of the answers are right")
        for form, count in right.items():
            if count < 5:
                print(f"  {count}/5 {form}")
