"""Several models in one server: names and routes."""

import shutil

import pytest

from danalab.cli.serve import Flags, open_models
from danalab.errors import UserError
from servers import ScriptedEngine, running_server, tiny_model


@pytest.fixture(scope="module")
def two():
    one, other = tiny_model(), tiny_model()
    one.name, other.name, other.step = "one", "a/other", 7
    engines = [ScriptedEngine(each, lambda text, name=each.name: f"{name}: {text}") for each in (one, other)]
    with (
        running_server(one, engine=engines[0], others=[(other, engines[1])]) as server,
        server.client() as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("name", "expected"), [(None, "one: hi"), ("one", "one: hi"), ("a/other", "a/other: hi")]
)
def test_a_request_is_answered_by_the_model_that_it_names(two, name, expected):
    body = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
    answer = two.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == expected
    assert answer["model"] == (name or "one")


def test_every_model_is_listed(two):
    assert [each["id"] for each in two.get("/v1/models").json()["data"]] == ["one", "a/other"]
    assert two.get("/v1/models/a/other").json()["step"] == 7
    refused = two.post("/v1/completions", json={"model": "third", "prompt": "x"})
    assert refused.status_code == 404
    assert "'one', 'a/other'" in refused.json()["error"]["message"]


def test_folders_become_models_of_different_names(base_run, tmp_path):
    same = shutil.copytree(base_run, tmp_path / "again" / base_run.name)
    names = [model.name for model in open_models(Flags(run=(base_run, same)))]
    assert names == [f"{base_run.parent.name}/{base_run.name}", f"again/{base_run.name}"]
    speedrun = tmp_path / "speedrun"
    for stage in ("base", "sft"):
        shutil.copytree(base_run, speedrun / stage)
    (speedrun / "speedrun.json").write_text("{}")
    assert [model.name for model in open_models(Flags(run=(speedrun,)))] == [
        "speedrun/sft",
        "speedrun/base",
    ]


@pytest.mark.parametrize("given", [{"name": "x"}, {"step": 3}])
def test_flags_of_one_model_are_refused_with_several(given, tmp_path):
    with pytest.raises(UserError, match="is about one model, and 2 run folders are given"):
        open_models(Flags(run=(tmp_path / "a", tmp_path / "b"), **given))
    with pytest.raises(UserError, match=r"would be called .*/a; give each once"):
        open_models(Flags(run=(tmp_path / "a", tmp_path / "a")))
