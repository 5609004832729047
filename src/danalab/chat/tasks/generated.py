"""Generated tasks: problem i is drawn from a generator that is keyed by task, seed, split and i.

The test problems of a task never appear among its training problems: the hash of a problem's content decides its split,
and a draw for the other split is drawn again.
"""

import hashlib
import random
from abc import abstractmethod
from dataclasses import dataclass

from danalab.chat.calculator import call_tool
from danalab.chat.tasks.base import TEST, TRAIN, Problem, Task
from danalab.errors import UserError

TEST_SHARE = 8
"""One problem of this number is a test problem."""
_DRAWS = 1000


@dataclass(kw_only=True, eq=False)
class GeneratedTask(Task):
    """A task without files. Raises UserError: a setting out of range."""

    seed: int = 0
    size: int = 1_000_000
    """Number of problems."""
    split: str = TRAIN
    """train or test."""

    def __post_init__(self) -> None:
        self.require("size", self.size >= 1, "must be at least 1")
        self.require("split", self.split in (TRAIN, TEST), f"must be {TRAIN} or {TEST}")

    def require(self, setting: str, is_allowed: bool, rule: str) -> None:
        """Refuse a value of a setting; `rule`: "must be ..."."""
        if not is_allowed:
            raise UserError(f"task {self.name}: {setting} is {getattr(self, setting)}; it {rule}")

    def __len__(self) -> int:
        return self.size

    def problem(self, position: int) -> Problem:
        """See `Task.problem`. Raises UserError: the settings leave no problem for this split."""
        generator = random.Random(f"{self.name}|{self.seed}|{self.split}|{position}")
        for _ in range(_DRAWS):
            problem = self.draw(generator)
            digest = hashlib.sha256(f"{self.name}|{self.content(problem)}".encode()).digest()
            if (digest[0] % TEST_SHARE == 0) == (self.split == TEST):
                return problem
        raise UserError(
            f"task {self.name}: its settings leave no problem for the split {self.split}; widen them"
        )

    def content(self, problem: Problem) -> str:
        """What decides the split of a problem: its questions."""
        before = [each.text for each in problem.history if each.role == "user"]
        return "|".join([*before, problem.question, *(turn.question for turn in problem.later)])

    @abstractmethod
    def draw(self, generator: random.Random) -> Problem:
        """A problem, a function of the generator's state."""


@dataclass(kw_only=True, eq=False)
class Arithmetic(GeneratedTask):
    """Sums, differences and products of two numbers."""

    name = "arithmetic"

    max: int = 99
    """Largest operand."""
    operations: str = "+-"
    """Characters among + - *."""
    calculator: bool = False
    """Whether solutions call the calculator."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("max", self.max >= 1, "must be at least 1")
        self.require(
            "operations", bool(self.operations) and set(self.operations) <= set("+-*"), "must have only + - *"
        )

    def draw(self, generator: random.Random) -> Problem:
        left, right = generator.randint(0, self.max), generator.randint(0, self.max)
        sign = generator.choice(self.operations)
        expression = f"{left}{sign}{right}"
        answer = call_tool(expression)
        solution = calculated(left, sign, right) if self.calculator else answer
        question = asked_sum(generator, left, sign, right)
        return Problem(question, answer, "number", solution, data={"expression": expression})

    def content(self, problem: Problem) -> str:
        return problem.data["expression"]  # however it is asked for


def calculated(left: object, sign: str, right: object) -> str:
    """An answer that calls the calculator and says its result."""
    expression = f"{left}{sign}{right}"
    result = call_tool(expression)
    return f"<<{expression}={result}>>{result}"


_SIGNS = {"+": ("+", "+", "+", "plus"), "-": ("-", "-", "-", "minus"), "*": ("*", "*", "x", "×", "times")}
_SPACES = ((" ", " "), (" ", " "), (" ", " "), ("", ""), ("", ""), (" ", ""), ("", " "))
"""Before and after a sign."""
_NOUNS = {
    "+": ("the sum of {0} and {1}", "{0} and {1} together", "the total of {0} and {1}", "{0} added to {1}"),
    "-": ("the difference of {0} and {1}", "{0} less {1}", "{0} take away {1}", "{0} reduced by {1}"),
    "*": ("the product of {0} and {1}", "{0} multiplied by {1}", "{0} multiplied with {1}"),
}
_ORDERS = {
    "+": ("Add {0} and {1}.", "Add {1} to {0}.", "Sum {0} and {1}", "Add {0}, {1}", "Add up {0} and {1}."),
    "-": ("Subtract {1} from {0}.", "Take {1} away from {0}.", "Take {1} from {0}", "Remove {1} from {0}."),
    "*": ("Multiply {0} by {1}.", "Multiply {0} and {1}", "Multiply {0} with {1}."),
}
_SENTENCES = (
    "{}", "{}", "{}", "{}", "{}?", "{} =", "{}=", "{} = ?", "{}=?", "What is {}?", "What is {}?", "What is {}?",
    "What's {}?", "Whats {}", "How much is {}?", "How much does {} make?", "Calculate {}.", "Compute {}.",
    "Evaluate {}.", "Work out {}.", "Solve {}.", "Find {}.", "Show me {}.", "Tell me {}.", "Give me {}.", "I need {}.",
    "I want {}.", "I would like {}.", "Let me know {}.", "Can you work out {}?", "Can you tell me {}?",
    "Could you tell me what {} is?", "Would you calculate {}?", "Will you find {}?", "Do you know {}?",
    "Do you know what {} is?", "Help me with {}.", "What does {} equal?", "What does {} come to?", "{} equals?",
    "{} is?", "{} is what?", "{} makes?", "{} gives what?", "What would {} be?", "What will {} be?",
    "What is the result of {}?", "What is the value of {}?", "The answer of {}?", "Result of {}", "The result of {}?",
    "I have {}, what is it?", "My homework is {}.", "And {}?", "Then {}?", "Just {}.", "Next: {}", "Is it hard: {}?",
)  # fmt: skip
_BEGINNINGS = (
    "Hi! ", "Hello, ", "Hey, ", "OK, ", "Now: ", "One question: ", "Hi, ", "So, ", "Please: ", "Please ", "Well, ",
    "Good morning. ", "Now please ", "Quickly, ", "Thanks. ", "Right, ",
)  # fmt: skip
_ENDINGS = (", please", " please", ", please?", " now", " for me", ", thanks", " quickly", ", thank you!")


def asked_sum(generator: random.Random, left: object, sign: str, right: object) -> str:
    """A sum as people type it: in signs or words, with and without spaces, in a sentence or alone.

    Some stand between words that mean nothing, so that wordings that no list has are read, too.
    """
    kind = generator.random()
    if kind < 0.12:
        question = generator.choice(_ORDERS[sign]).format(left, right)
    else:
        asked = generator.choice(_NOUNS[sign]).format(left, right)
        if kind > 0.24:
            spelling = generator.choice(_SIGNS[sign])
            spaces = (" ", " ") if len(spelling) > 1 else generator.choice(_SPACES)
            asked = spelling.join((f"{left}{spaces[0]}", f"{spaces[1]}{right}"))
        question = generator.choice(_SENTENCES).format(asked)
        if kind > 0.82:
            question = f"{_words(generator)} {asked} {_words(generator)}".strip()
    if generator.random() < 0.3:
        question = question.rstrip("?.")
    if generator.random() < 0.15:
        question = question.rstrip("?.") + generator.choice(_ENDINGS)
    if generator.random() < 0.3:
        question = question[0].lower() + question[1:]
    return generator.choice(_BEGINNINGS) + question if generator.random() < 0.15 else question


def _words(generator: random.Random) -> str:
    return " ".join(make_word(generator, 2) for _ in range(generator.randint(0, 4)))


_CONSONANTS, _VOWELS, _CODAS = "bcdfghjklmnprstvwz", "aeiou", ("", "", "n", "r", "s", "t")


def make_word(generator: random.Random, syllables: int) -> str:
    """A word of up to `syllables` syllables that can be pronounced."""
    count = generator.randint(1, syllables)
    return "".join(generator.choice(part) for _ in range(count) for part in (_CONSONANTS, _VOWELS, _CODAS))


@dataclass(kw_only=True, eq=False)
class Spelling(GeneratedTask):
    """ "Spell the word 'banana'." -> "b a n a n a"."""

    name = "spelling"

    syllables: int = 3
    """Largest number of syllables of a word."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("syllables", 1 <= self.syllables <= 20, "must be 1 to 20")

    def draw(self, generator: random.Random) -> Problem:
        word = make_word(generator, self.syllables)
        return Problem(f"Spell the word '{word}'.", " ".join(word), "exact")


class Counting(Spelling):
    """ "How many times does the letter a appear in 'banana'?" -> spelled out, then the number."""

    name = "counting"

    def draw(self, generator: random.Random) -> Problem:
        word = make_word(generator, self.syllables)
        letter = (
            generator.choice(word) if generator.random() < 0.75 else generator.choice(_CONSONANTS + _VOWELS)
        )
        seen, steps = 0, []
        for each in word:
            seen += each == letter
            steps.append(f"{each} {seen}" if each == letter else each)
        question = f"How many times does the letter {letter} appear in '{word}'?"
        return Problem(question, str(seen), "number", f"{', '.join(steps)}: {seen}")
