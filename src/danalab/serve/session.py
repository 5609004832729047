"""A conversation with a model in this process: `danalab chat`."""

from collections.abc import Generator

from danalab.chat.conversations import Conversation, Message
from danalab.errors import UserError
from danalab.inference import Engine, SamplingParameters
from danalab.serve.chat_model import ChatModel
from danalab.serve.planner import ChatQuestion, Planner
from danalab.serve.readers import Answer, Delta, force_result


class ChatSession:
    """Remembers the turns of one conversation; the oldest are left out when the context is full.

    Args: engine: of the model, with its tokenizer.
    """

    def __init__(self, chat_model: ChatModel, engine: Engine, sampling: SamplingParameters, system: str = ""):
        self.chat_model, self.engine, self.sampling, self.system = chat_model, engine, sampling, system
        self.turns: list[Message] = []

    def reset(self) -> None:
        """Forget all turns."""
        self.turns.clear()

    def ask(self, question: str) -> Generator[Delta, None, None]:
        """The answer, in pieces. If it is closed early, the answer so far is remembered.

        Raises:
            UserError: an empty question, one that exceeds the context, or another answer is being written.
        """
        if self.engine.busy:
            raise UserError("an answer is being written: read it to its end, or close it, before the next question")
        messages = [*self.turns, Message.of("user", question)]
        if self.system.strip():
            messages.insert(0, Message.of("system", self.system))
        asked = ChatQuestion(Conversation(tuple(messages)), self.sampling, drops_old_turns=True)
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
            if answer.text.strip():
                self.turns += [Message.of("user", question), answer.message]
