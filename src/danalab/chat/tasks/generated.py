"""Generated tasks: problem i is drawn from a generator that is keyed by task, seed, split and i.

The test problems of a task never appear among its training problems: the hash of a problem's content decides its split,
and a draw for the other split is drawn again.
"""

import hashlib
import random
from abc import abstractmethod

from danalab.chat.tasks.base import TASKS, TEST, TRAIN, Problem, Task
from danalab.chat.tools import call_tool
from danalab.errors import UserError

TEST_SHARE = 8
"""One problem of this number is a test problem."""
_DRAWS = 1000


class GeneratedTask(Task):
    """A task without files.

    Args:
        size: number of problems.
        split: train or test.
    Raises:
        UserError: a size below 1, or another split.
    """

    def __init__(self, *, seed: int = 0, size: int = 1_000_000, split: str = TRAIN):
        if size < 1:
            raise UserError(f"task {self.name}: size {size}: must be at least 1")
        if split not in (TRAIN, TEST):
            raise UserError(f"task {self.name}: split {split}: must be {TRAIN} or {TEST}")
        self._seed, self._size, self._split = seed, size, split

    def __len__(self) -> int:
        return self._size

    def problem(self, position: int) -> Problem:
        """See `Task.problem`.

        Raises:
            UserError: the settings leave no problem for this split.
        """
        generator = random.Random(f"{self.name}|{self._seed}|{self._split}|{position}")
        for _ in range(_DRAWS):
            found = self.draw(generator)
            if _is_test(f"{self.name}|{found.question}") == (self._split == TEST):
                return found
        raise UserError(f"task {self.name}: its settings leave no problem for the split {self._split}; widen them")

    @abstractmethod
    def draw(self, generator: random.Random) -> Problem:
        """A problem, a function of the generator's state."""


def _is_test(key: str) -> bool:
    return hashlib.sha256(key.encode()).digest()[0] % TEST_SHARE == 0


class Arithmetic(GeneratedTask):
    """Sums, differences and products of two numbers.

    Args:
        max: largest operand.
        operations: characters among + - *.
        calculator: solutions call the calculator.
    Raises:
        UserError: a setting out of range.
    """

    name = "arithmetic"
    summary = "sums, differences and products of two numbers"

    def __init__(
        self,
        *,
        max: int = 99,
        operations: str = "+-",
        calculator: bool = False,
        seed: int = 0,
        size: int = 1_000_000,
        split: str = TRAIN,
    ):
        super().__init__(seed=seed, size=size, split=split)
        if max < 1:
            raise UserError(f"task arithmetic: max {max}: must be at least 1")
        if not operations or set(operations) - set("+-*"):
            raise UserError(f"task arithmetic: operations '{operations}': characters among + - *")
        self._max, self._operations, self._calculator = max, operations, calculator

    def draw(self, generator: random.Random) -> Problem:
        """See `GeneratedTask.draw`."""
        left, right = generator.randint(0, self._max), generator.randint(0, self._max)
        expression = f"{left} {generator.choice(self._operations)} {right}"
        answer = call_tool(expression)
        solution = answer
        if self._calculator:
            solution = (
                {"type": "python", "text": expression},
                {"type": "python_output", "text": answer},
                {"type": "text", "text": answer},
            )
        return Problem(f"What is {expression}?", answer, "number", solution)


_CONSONANTS, _VOWELS, _CODAS = "bcdfghjklmnprstvwz", "aeiou", ("", "", "n", "r", "s", "t")


def make_word(generator: random.Random, syllables: int) -> str:
    """A word of up to `syllables` syllables that can be pronounced."""
    count = generator.randint(1, syllables)
    return "".join(
        generator.choice(_CONSONANTS) + generator.choice(_VOWELS) + generator.choice(_CODAS) for _ in range(count)
    )


class _Letters(GeneratedTask):
    """A task about a word.

    Args:
        syllables: of a word, at most.
    Raises:
        UserError: a setting out of range.
    """

    def __init__(self, *, syllables: int = 3, seed: int = 0, size: int = 1_000_000, split: str = TRAIN):
        super().__init__(seed=seed, size=size, split=split)
        if not 1 <= syllables <= 20:
            raise UserError(f"task {self.name}: syllables {syllables}: must be 1 to 20")
        self._syllables = syllables


class Spelling(_Letters):
    """ "Spell the word 'banana'." -> "b a n a n a"."""

    name = "spelling"
    summary = "the letters of a word, one by one"

    def draw(self, generator: random.Random) -> Problem:
        """See `GeneratedTask.draw`."""
        word = make_word(generator, self._syllables)
        return Problem(f"Spell the word '{word}'.", " ".join(word), "exact")


class Counting(_Letters):
    """ "How many times does the letter a appear in 'banana'?" -> spelled out, then the number."""

    name = "counting"
    summary = "the number of times that a letter appears in a word"

    def draw(self, generator: random.Random) -> Problem:
        """See `GeneratedTask.draw`."""
        word = make_word(generator, self._syllables)
        letter = generator.choice(word) if generator.random() < 0.75 else generator.choice(_CONSONANTS + _VOWELS)
        seen, steps = 0, []
        for each in word:
            seen += each == letter
            steps.append(f"{each} {seen}" if each == letter else each)
        question = f"How many times does the letter {letter} appear in '{word}'?"
        return Problem(question, str(seen), "number", f"{', '.join(steps)}: {seen}")


_GREETINGS = (
    "",
    "",
    "Hi! ",
    "Hello! ",
    "Hey, ",
    "Hello there. ",
    "Good morning. ",
    "Please tell me: ",
    "One question: ",
)
_ENDS = ("?", "?", " ?", "??", ", please?", "? I would like to know.", "? Tell me.", "? Just curious.")
_QUESTIONS = {
    "My name is {name}.": (
        "What is your name", "what's your name", "What are you called", "how do people call you",
        "What should I call you", "Do you have a name", "which name do you have", "May I ask your name",
    ),
    "I am a small language model.": (
        "What are you", "Are you a human", "Are you a person", "what kind of thing are you",
        "Am I talking to a machine", "Are you a robot", "Is this a computer program", "what am I talking to",
    ),
    "I was trained with {name}, a pre-training lab.": (
        "Who made you", "Who trained you", "where do you come from", "How were you made", "who is your creator",
        "Which program trained you", "what were you trained with", "How did you come to be",
    ),
}  # fmt: skip


class Identity(GeneratedTask):
    """The model's name, kind and origin.

    Args:
        called: the name that the model has.
    Raises:
        UserError: an empty name.
    """

    name = "identity"
    summary = "questions about the model itself: its name, what it is, who made it"

    def __init__(self, *, called: str = "danalab", seed: int = 0, size: int = 1_000_000, split: str = TRAIN):
        super().__init__(seed=seed, size=size, split=split)
        if not called.strip():
            raise UserError("task identity: called: the name is empty")
        self._called = called

    def draw(self, generator: random.Random) -> Problem:
        """See `GeneratedTask.draw`."""
        answer, wordings = generator.choice(list(_QUESTIONS.items()))
        question = generator.choice(_GREETINGS) + generator.choice(wordings) + generator.choice(_ENDS)
        return Problem(question, answer.format(name=self._called), "exact")


for _task in (Arithmetic, Spelling, Counting, Identity):
    TASKS.add(_task.name, _task)
