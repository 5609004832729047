"""Spelling words and counting their letters; the words are made of syllables, so no list is needed."""

import random

from danalab.chat.tasks.base import TRAIN, Problem
from danalab.chat.tasks.generated import GeneratedTask
from danalab.chat.tasks.registry import TASKS
from danalab.errors import UserError

_CONSONANTS, _VOWELS, _ENDS = "bcdfghjklmnprstvwz", "aeiou", ("", "", "n", "r", "s", "t")


def make_word(generator: random.Random, syllables: int) -> str:
    """A word of up to `syllables` syllables that can be pronounced."""
    count = generator.randint(1, syllables)
    return "".join(
        generator.choice(_CONSONANTS) + generator.choice(_VOWELS) + generator.choice(_ENDS) for _ in range(count)
    )


class _Letters(GeneratedTask):
    """A task about a word."""

    def __init__(self, *, syllables: int = 3, seed: int = 0, size: int = 1_000_000, split: str = TRAIN):
        """Args: syllables: of a word, at most.

        Raises:
            UserError: a setting out of range.
        """
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


TASKS.add(Spelling.name, Spelling)
TASKS.add(Counting.name, Counting)
