"""The engine's answers through the server are those of the engine itself; the folder of a run may change meanwhile."""

import shutil

import pytest

from danalab.inference import Engine, Request, SamplingParameters
from danalab.serve.chat_model import open_chat_model
from servers import running_server, tiny_model


def test_the_server_writes_what_the_engine_alone_writes(server, client):
    prompt = "Once upon a time"
    body = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "logprobs": 1}
    answer = client.post("/v1/completions", json=body).json()["choices"][0]
    model = server.model
    request = Request(model.tokenizer.encode(prompt), SamplingParameters(max_tokens=20, temperature=0))
    (alone,) = Engine(model.model, model.tokenizer).generate([request])
    tokens = [token for token in alone.tokens if token not in model.tokenizer.specials.values()]
    assert answer["text"] == model.tokenizer.decode(tokens)


def test_a_base_model_has_a_plain_template_and_no_tools():
    with running_server(tiny_model(base=True)) as server, server.client() as client:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "seed": 1}
        answer = client.post("/v1/chat/completions", json=body).json()
        assert answer["usage"]["prompt_tokens"] == 1 + len("User: hi\nAssistant:")
        tool = {"type": "function", "function": {"name": "f"}}
        refused = client.post("/v1/chat/completions", json={**body, "tools": [tool]})
        assert refused.json()["error"]["param"] == "tools"
        assert client.get("/v1/models").json()["data"][0]["chat"] is False


@pytest.mark.parametrize("change", ["deleted", "overwritten"])
def test_a_run_folder_may_change_while_it_is_served(chat_run, tmp_path, change):
    folder = shutil.copytree(chat_run, tmp_path / "run")
    model = open_chat_model(folder)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "seed": 1}
    with running_server(model) as server, server.client() as client:
        before = client.post("/v1/chat/completions", json=body).json()["choices"]
        for file in [path for path in folder.rglob("*") if path.is_file()]:
            file.write_bytes(b"") if change == "overwritten" else file.unlink()
        after = client.post("/v1/chat/completions", json=body).json()["choices"]
        assert after == before
        assert client.get("/v1/models").json()["data"][0]["step"] == model.step
