"""A conversation with a model in this process: `danalab chat`."""

from collections.abc import Generator

from danalab.chat.conversations import Conversation, Message
from danalab.errors import UserError
from danalab.inference import Engine, SamplingParameters
from danalab.serve.chat_model import ChatModel
from danalab.serve.planner import ChatQuestion, Planner
from danalab.serve.readers import Answer, Delta, force_result


class ChatSession:
    """The turns of one conversation, the oldest left out when the context is full; `engine` is the model's."""

    def __init__(self, chat_model: ChatModel, engine: Engine, sampling: SamplingParameters, system: str = ""):
        self.chat_model, self.engine, self.sampling, self.system = chat_model, engine, sampling, system
        self.turns: list[Message] = []

    def reset(self) -> None:
        """Forget all turns."""
        self.turns.clear()

    @property
    def conversation(self) -> Conversation:
        """Instructions and turns; UserError: nothing has been said."""
        return self._with(self.turns)

    def load(self, conversation: Conversation) -> bool:
        """Go on with another conversation; returns whether a question at its end, which has no answer, is left out."""
        messages = list(conversation.messages)
        self.system = messages.pop(0).text if messages[0].role == "system" else ""
        self.turns = messages[: -1 if messages[-1].role == "user" else None]
        return len(self.turns) < len(messages)

    def retry(self) -> Generator[Delta, None, None]:
        """Another answer to the last question (UserError: there is none). An empty one does not replace the old."""
        if len(self.turns) < 2:
            raise UserError("there is no question to answer anew")
        question, before = self.turns[-2].text, self.turns
        self.turns = before[:-2]
        try:
            yield from self.ask(question)
        finally:
            if len(self.turns) < len(before):
                self.turns = before

    def ask(self, question: str) -> Generator[Delta, None, None]:
        """The answer, in pieces; if closed early, it is remembered. UserError: an empty or long question, or busy."""
        if self.engine.busy:
            raise UserError("an answer is being written: read it to its end, or close it, before the next question")
        conversation = self._with([*self.turns, Message.of("user", question)])
        asked = ChatQuestion(conversation, self.sampling, drops_old_turns=True)
        ((request, reader),) = Planner(self.chat_model, max_choices=1).chat(asked, scope="").pairs
        number = self.engine.submit(request)
        answer = Answer()
        try:
            while answer.finish_reason is None:
                for event in self.engine.step():
                    delta = force_result(self.engine, number, reader.read(event))
                    answer.add(delta)
                    yield delta
        finally:
            self.engine.cancel(number)
            if answer.text.strip() or answer.calculations:
                self.turns += [Message.of("user", question), answer.message]

    def _with(self, turns: list[Message]) -> Conversation:
        system = [Message.of("system", self.system)] if self.system.strip() else []
        return Conversation((*system, *turns))
