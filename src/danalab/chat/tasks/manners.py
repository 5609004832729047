"""Generated tasks of manners: who the model is, and conversations of several turns.

Later turns of a `Dialogue` need the earlier ones:

sum        What is 12 + 7?  -> 12+7 = 19        follow-up    Add 5 to that.        -> 19 + 5 = 24
name       I am Lena.       -> Hello, Lena.     asked back   What is my name?      -> Your name is Lena.
chit-chat  How are you?     -> I am fine.       correction   Sorry, I meant 12 + 8. -> 12 + 8 = 20
"""

import random
from dataclasses import dataclass, field, replace

from danalab.chat.calculator import call_tool
from danalab.chat.messages import Message
from danalab.chat.tasks.base import Problem
from danalab.chat.tasks.generated import GeneratedTask, asked_sum, calculated, make_word

_GREETINGS = (
    "", "", "Hi! ", "Hello! ", "Hey, ", "Hello there. ", "Good morning. ", "Please tell me: ", "One question: ",
)  # fmt: skip
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
    "I am {name}, a small language model.": (
        "Who are you", "who are you", "Who is this", "tell me who you are", "Can you introduce yourself",
        "Introduce yourself", "Tell me about yourself", "who is there",
    ),
}  # fmt: skip


@dataclass(kw_only=True, eq=False)
class Identity(GeneratedTask):
    """The model's name, kind and origin."""

    name = "identity"

    called: str = "danalab"
    """The name that the model has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("called", bool(self.called.strip()), "must have a character")

    def draw(self, generator: random.Random) -> Problem:
        answer, wordings = generator.choice(list(_QUESTIONS.items()))
        question = generator.choice(_GREETINGS) + generator.choice(wordings) + generator.choice(_ENDS)
        return Problem(question, answer.format(name=self.called), "exact")


# ---- conversations of several turns ----

CHIT_CHAT: dict[str, tuple[str, ...]] = {
    "Hello! How can I help you?": (
        "hello", "hi", "hello", "hi", "hi there", "hello there", "good morning", "good evening", "hey", "hey there",
    ),
    "I am fine, thank you.": ("how are you", "how do you do", "are you well", "how is it going"),
    "You are welcome.": ("thank you", "thanks", "thanks a lot", "many thanks"),
    "Goodbye!": ("goodbye", "bye", "see you later", "I have to go"),
    "Good night!": ("good night", "I am going to sleep", "time for bed"),
    "I can do sums and remember your name.": ("what can you do", "how can you help me", "what are you good at"),
    "I like numbers.": ("what do you like", "what are you fond of", "do you like anything"),
    "Blue, like the sky.": ("what is your favourite colour", "which colour do you like", "do you have a colour"),
    "Seven.": ("what is your favourite number", "which number do you like", "tell me a number"),
    "No, I only know text.": ("can you see me", "can you hear me", "do you have eyes"),
    "I live in a computer.": ("where do you live", "where is your home", "where are you"),
    "I have no age.": ("how old are you", "what is your age", "when is your birthday"),
    "I do not eat.": ("what do you eat", "are you hungry", "do you like food"),
    "I never sleep.": ("are you tired", "do you sleep", "when do you sleep"),
    "Why did the number smile? It was even.": ("tell me a joke", "make me laugh", "do you know a joke"),
    "Once a sum met its result, and they were equal.": ("tell me a story", "do you know a story", "a story, please"),
    "Roses are red, the rest is text.": ("tell me a poem", "do you know a poem", "a poem, please"),
    "I have no weather here.": ("how is the weather", "is it raining", "is it warm today"),
    "I do not know the time.": ("what time is it", "how late is it", "do you have a watch"),
    "I do not know the date.": ("what day is it", "which year is it", "what is the date"),
    "That is kind of you.": ("you are clever", "you are nice", "well done", "good answer"),
    "I am sorry.": ("that was bad", "you are slow", "I am angry", "that is annoying"),
    "I am glad to hear it.": ("I am happy", "I feel good", "today is a good day", "I am in a good mood"),
    "I hope that it gets better.": ("I am sad", "I feel bad", "I had a bad day", "I am not well"),
    "Then have a rest.": ("I am tired", "I am sleepy", "I need a break", "I worked a lot"),
    "Then eat something.": ("I am hungry", "I want to eat", "I missed lunch"),
    "Then drink some water.": ("I am thirsty", "I want to drink", "my throat is dry"),
    "Take your time.": ("wait a moment", "one moment", "hold on", "just a second"),
    "Of course. Go on.": ("can I ask something", "may I ask you something", "I have a question"),
    "I only know what I have read.": ("do you know everything", "are you wise", "what do you know"),
    "Yes, a little.": ("can you count", "do you know arithmetic", "are you good at sums"),
    "No, I am a program.": ("are you real", "are you alive", "do you have a heart"),
    "I speak some English.": ("do you speak English", "which languages do you speak", "what do you speak"),
    "I learned from text.": ("how did you learn", "where did you go to school", "who taught you"),
    "No, but I like to talk.": ("do you have friends", "are you alone", "are you lonely"),
    "I cannot sing.": ("sing a song", "can you sing", "do you like music"),
    "I have no hands for games.": ("do you play games", "can we play", "let us play"),
    "Maybe tomorrow.": ("will you come with me", "let us go out", "shall we dance"),
    "That is all right.": ("I am sorry", "sorry", "excuse me", "my mistake"),
    "Let us talk about something else.": ("I am bored", "this is boring", "what now", "what shall we do"),
}  # fmt: skip
"""Answer -> what one may say before it; 40 templates."""

_NAMES = (
    "Ada", "Anna", "Ben", "Clara", "David", "Elena", "Emma", "Felix", "Grace", "Hanna", "Ivan", "Jonas", "Karin",
    "Lena", "Leo", "Maria", "Max", "Mia", "Nora", "Omar", "Paul", "Quinn", "Rosa", "Sam", "Tom", "Uma", "Vera", "Will",
    "Yara", "Zoe",
)  # fmt: skip
_FOLLOW_UPS = {
    "+": ("Add {}.", "Add {} to that.", "Plus {}?", "And plus {}?", "Now add {} to it."),
    "-": ("Subtract {}.", "Subtract {} from that.", "Minus {}?", "And minus {}?", "Now take away {}."),
    "*": ("Times {}?", "Multiply that by {}.", "And times {}?", "Now multiply it by {}."),
}
_CORRECTIONS = (
    "Sorry, I meant {}.",
    "No, I meant {}.",
    "I meant {}.",
    "Oh, I wanted {}.",
    "That should be {}.",
)
_GIVEN = (
    "My name is {}.",
    "I am {}.",
    "Call me {}.",
    "I'm called {}.",
    "Hi, I am {}.",
    "Hello, my name is {}.",
)
_ASKED = (
    "What is my name?",
    "Who am I?",
    "Do you know my name?",
    "What am I called?",
    "Do you remember my name?",
)


@dataclass
class _State:
    """What the conversation has been about."""

    name: str = ""
    sum: tuple[str, str] = ("", "")
    """The left side and the sign of the last sum."""
    result: str = ""
    turns: list[Problem] = field(default_factory=list)

    def add(self, question: str, answer: str, reward: str = "exact", solution: str = "") -> None:
        self.turns.append(Problem(question, answer, reward, solution))


@dataclass(kw_only=True, eq=False)
class Dialogue(GeneratedTask):
    """Conversations of several turns: sums and what follows from them, names, corrections, chit-chat."""

    name = "dialogue"

    max: int = 99
    """Largest operand."""
    turns: int = 3
    """Questions of a conversation."""
    ask: int = 0
    """The problem is this turn, after the right answers to those before it; 0: the whole conversation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("max", self.max >= 1, "must be at least 1")
        self.require("turns", 1 <= self.turns <= 20, "must be 1 to 20")
        self.require("ask", 0 <= self.ask <= self.turns, f"must be 0 to {self.turns}")

    def draw(self, generator: random.Random) -> Problem:
        state = _State()
        while len(state.turns) < self.turns:
            self._add_turn(state, generator)
        first, *later = state.turns
        problem = replace(first, later=tuple(later))
        for _ in range(self.ask - 1):
            problem = problem.next_turn(Message.of("assistant", problem.content))
        return replace(problem, later=()) if self.ask else problem

    def _add_turn(self, state: _State, generator: random.Random) -> None:
        kinds = ["sum", "sum", "name", "chat"]
        if state.result:
            kinds += ["follow-up", "follow-up", "follow-up", "correction"]
        if state.name:
            kinds += ["asked", "asked"]
        match generator.choice(kinds):
            case "sum":
                left, sign, right = (
                    generator.randint(0, self.max),
                    generator.choice("+-*"),
                    generator.randint(0, self.max),
                )
                self._sum(state, asked_sum(generator, left, sign, right), str(left), sign, right)
            case "follow-up":
                sign = generator.choice("++--*" if len(state.result) < 4 else "+-")
                number = generator.randint(2, 9 if sign == "*" else self.max)
                question = generator.choice(_FOLLOW_UPS[sign]).format(number)
                self._sum(state, question, state.result, sign, number)
            case "correction":
                left, sign = state.sum
                right = generator.randint(0, 9 if sign == "*" else self.max)
                self._sum(
                    state, generator.choice(_CORRECTIONS).format(f"{left} {sign} {right}"), left, sign, right
                )
            case "name":
                state.name = generator.choice(
                    (generator.choice(_NAMES), make_word(generator, 2).capitalize())
                )
                state.add(generator.choice(_GIVEN).format(state.name), f"Hello, {state.name}.")
            case "asked":
                state.add(generator.choice(_ASKED), f"Your name is {state.name}.")
            case _:
                answer = generator.choice(
                    [*CHIT_CHAT, *list(CHIT_CHAT)[:3]]
                )  # greetings and thanks more often
                said = generator.choice(CHIT_CHAT[answer])
                said = said[0].upper() + said[1:] if generator.random() < 0.7 else said
                state.add(said + generator.choice(("", ".", "!", "?", " :)", ", please.")), answer)

    def _sum(self, state: _State, question: str, left: str, sign: str, right: int) -> None:
        state.sum, state.result = (left, sign), call_tool(f"{left}{sign}{right}")
        state.add(question, state.result, "number", calculated(left, sign, right))
