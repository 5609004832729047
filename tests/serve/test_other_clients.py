"""Three turns with a sum or a tool in the loops of other clients, which live in environments of their own.

DANALAB_CLIENTS         the Python of an environment with langchain-openai and pydantic-ai; default this one
DANALAB_NODE_MODULES    a folder in which `npm install openai` was run
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from servers import running_server, tiny_model

pytestmark = pytest.mark.slow  # each imports for seconds, and only where it is installed

PYTHON = os.environ.get("DANALAB_CLIENTS", sys.executable)

LANGCHAIN = """
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

chat = ChatOpenAI(model="tiny", base_url=url, api_key="none", max_retries=0, max_tokens=80, seed=1)
messages = []
for question in questions:
    messages.append(HumanMessage(question))
    if tool:
        messages.append(chat.bind_tools([tool], tool_choice="required").invoke(messages))
        messages.append(ToolMessage("sunny", tool_call_id=messages[-1].tool_calls[0]["id"]))
    messages.append(chat.invoke(messages))
print(json.dumps([message.content for message in messages]))
"""
PYDANTIC_AI = """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=url, api_key="none"))
agent = Agent(model, output_type=bool if tool else str, model_settings={"max_tokens": 80, "seed": 1}, retries=0)
history, answers = [], []
for question in questions:
    result = agent.run_sync(question, message_history=history)
    history = result.all_messages()
    answers.append(result.output)
print(json.dumps(answers))
"""
NODE = """
import OpenAI from "openai";
const api = new OpenAI({baseURL: URL_, apiKey: "none", maxRetries: 0});
const messages = [];
for (const question of QUESTIONS) {
  messages.push({role: "user", content: question});
  const stream = api.chat.completions.stream({model: "tiny", messages});
  messages.push((await stream.finalChatCompletion()).choices[0].message);
}
console.log(JSON.stringify(messages.map((message) => message.content)));
"""
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


def run_python(program: str, package: str, url: str, questions: list[str], tool: dict | None = None) -> list:
    """What a program in the clients' environment prints; skips the test where the client is missing."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if subprocess.run([PYTHON, "-c", f"import {package}"], env=environment, capture_output=True).returncode:
        pytest.skip(f"{package} is not installed in {PYTHON}")
    head = f"import json\nurl, questions, tool = {url + '/v1'!r}, {questions!r}, {tool!r}\n"
    done = subprocess.run(
        [PYTHON, "-c", head + program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


QUESTIONS = ["12*7?", "2+2?", "bye"]


@pytest.fixture(scope="module")
def roomy():
    """A server of a random model whose context has space for three turns with a tool, a byte a token."""
    with running_server(tiny_model(2048)) as running:
        yield running


def test_three_turns_of_sums_by_langchain(scripted):
    said = run_python(LANGCHAIN, "langchain_openai", scripted[0].url, QUESTIONS)
    assert [said[place] for place in (0, 2, 4)] == QUESTIONS
    assert said[-1] == "bye"
    assert "It is " in scripted[1].prompts[-1]


def test_three_turns_with_a_tool_by_langchain(roomy):
    said = run_python(LANGCHAIN, "langchain_openai", roomy.url, ["weather?", "and now?", "thanks"], WEATHER)
    assert said.count("sunny") == 3


def test_three_turns_of_sums_by_pydantic_ai(scripted):
    assert run_python(PYDANTIC_AI, "pydantic_ai", scripted[0].url, QUESTIONS)[-1] == "bye"
    assert "It is " in scripted[1].prompts[-1]


def test_three_turns_with_a_tool_by_pydantic_ai(roomy):
    answers = run_python(PYDANTIC_AI, "pydantic_ai", roomy.url, ["is it so?", "and now?", "sure?"], WEATHER)
    assert [type(answer) for answer in answers] == [bool] * 3


def test_three_turns_of_sums_by_node(scripted):
    folder = os.environ.get("DANALAB_NODE_MODULES")
    if folder is None or not (Path(folder) / "node_modules" / "openai").is_dir():
        pytest.skip("DANALAB_NODE_MODULES names no folder with node's openai")
    program = NODE.replace("URL_", json.dumps(f"{scripted[0].url}/v1")).replace(
        "QUESTIONS", json.dumps(QUESTIONS)
    )
    done = subprocess.run(
        ["node", "--input-type=module", "-e", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)[-1] == "bye"
    assert "It is " in scripted[1].prompts[-1]
