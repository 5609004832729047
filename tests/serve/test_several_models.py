"""Several models in one server: names, routes, metrics; the cards of their runs."""

import json
import shutil
from dataclasses import replace

import pytest

from danalab.cli.serve import Flags, open_models
from danalab.errors import UserError
from danalab.serve import open_chat_model
from danalab.serve.chat_model import run_card
from servers import ScriptedEngine, running_server, tiny_model


@pytest.fixture(scope="module")
def two():
    one, other = replace(tiny_model(), name="one"), replace(tiny_model(), name="a/other", step=7)
    engines = [ScriptedEngine(each, lambda text, name=each.name: f"{name}: {text}") for each in (one, other)]
    with running_server(one, engine=engines[0], others=[(other, engines[1])]) as server, server.client() as client:
        yield client


@pytest.mark.parametrize(("name", "expected"), [(None, "one: hi"), ("one", "one: hi"), ("a/other", "a/other: hi")])
def test_a_request_is_answered_by_the_model_that_it_names(two, name, expected):
    body = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
    answer = two.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == expected
    assert answer["model"] == (name or "one")


def test_every_model_is_listed_and_counted(two):
    assert [each["id"] for each in two.get("/v1/models").json()["data"]] == ["one", "a/other"]
    assert two.get("/v1/models/a/other").json()["step"] == 7
    assert [each["id"] for each in two.get("/v1/runs").json()["runs"]] == ["one", "a/other"]
    refused = two.post("/v1/completions", json={"model": "third", "prompt": "x"})
    assert refused.status_code == 404
    assert "'one', 'a/other'" in refused.json()["error"]["message"]
    text = two.get("/metrics").text
    for name in ("one", "a/other"):
        assert f'danalab_requests_waiting{{model="{name}"}}' in text
    assert text.count("# TYPE danalab_requests_waiting ") == 1


def test_folders_become_models_of_different_names(base_run, tmp_path):
    same = shutil.copytree(base_run, tmp_path / "again" / base_run.name)
    names = [model.name for model in open_models(Flags(folder=(base_run, same)))]
    assert names == [f"{base_run.parent.name}/{base_run.name}", f"again/{base_run.name}"]
    speedrun = tmp_path / "speedrun"
    for stage in ("base", "sft"):
        shutil.copytree(base_run, speedrun / stage)
    (speedrun / "speedrun.json").write_text("{}")
    assert [model.name for model in open_models(Flags(folder=(speedrun,)))] == ["base", "sft"]


@pytest.mark.parametrize("given", [{"name": "x"}, {"step": 3}, {"run": "r"}])
def test_flags_of_one_model_are_refused_with_several(given, tmp_path):
    with pytest.raises(UserError, match="is about one model, and 2 run folders are given"):
        open_models(Flags(folder=(tmp_path / "a", tmp_path / "b"), **given))
    with pytest.raises(UserError, match="is given twice"):
        open_models(Flags(folder=(tmp_path / "a", tmp_path / "a")))


def test_a_card_has_the_run_its_curve_and_questions_of_its_tasks(base_run, tmp_path):
    folder = shutil.copytree(base_run, tmp_path / "sft")
    record = json.loads((folder / "config.json").read_text())
    record["stage"], record["given"]["data"] = (
        "sft",
        "mine.jsonl\narithmetic:max=9,size=50\nidentity:size=50\nunknown:x=1",
    )
    (folder / "config.json").write_text(json.dumps(record))
    rows = [{"step": step, "train/loss": 5.0 - step / 200} for step in range(1, 301)] + [{"step": 4, "val/loss": 1.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "broken")
    card = open_chat_model(folder).card
    assert (card["stage"], card["optimizer"], card["steps"]) == ("sft", "adamw", 3)
    assert len(card["examples"]) == 4
    assert sum(example.startswith("What is") for example in card["examples"]) == 2
    model = tiny_model().model
    curve = run_card(folder, model, 200)["curve"]
    assert curve["metric"] == "train/loss"
    assert curve["points"][0][0] == 1
    assert curve["points"][-1][0] == 200
    assert len(curve["points"]) <= 80
    assert "stage" not in run_card(tmp_path, model, None)
