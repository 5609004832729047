"""Who the model is: "What is your name?"; questions in many wordings, one answer for each kind of question."""

import random

from danalab.chat.tasks.base import TRAIN, Problem
from danalab.chat.tasks.generated import GeneratedTask
from danalab.chat.tasks.registry import TASKS
from danalab.errors import UserError

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
    """The model's name, kind and origin."""

    name = "identity"
    summary = "questions about the model itself: its name, what it is, who made it"

    def __init__(self, *, called: str = "danalab", seed: int = 0, size: int = 1_000_000, split: str = TRAIN):
        """Args: called: the name that the model has.

        Raises:
            UserError: an empty name.
        """
        super().__init__(seed=seed, size=size, split=split)
        if not called.strip():
            raise UserError("task identity: called: the name is empty")
        self._called = called

    def draw(self, generator: random.Random) -> Problem:
        """See `GeneratedTask.draw`."""
        answer, wordings = generator.choice(list(_QUESTIONS.items()))
        question = generator.choice(_GREETINGS) + generator.choice(wordings) + generator.choice(_ENDS)
        return Problem(question, answer.format(name=self._called), "exact")


TASKS.add(Identity.name, Identity)
