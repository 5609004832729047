"""The core without its annexes: it decodes, serves, scores and names what it has."""

import subprocess
import sys

CODE = """
from danalab import plugins

plugins.ANNEXES = "annexes_that_are_not_installed"
from danalab.chat.rewards import REWARDS
from danalab.chat.tasks import TASKS
from danalab.cli.app import main
from danalab.inference import Engine, Request, SamplingParameters
from danalab.models import ModelConfig, build_model
from danalab.serve.app import ENDPOINTS

for registry in (REWARDS, TASKS, ENDPOINTS):
    print(*registry.names())
sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "head_dim": 16, "mlp_dim": 16, "vocab_size": 32, "seq_len": 16}
engine = Engine(build_model(ModelConfig(arch="enoki", **sizes)).eval())
(text,) = engine.generate([Request([1, 2], SamplingParameters(max_tokens=3, ignore_end=True))])
print(type(engine._backend).__name__, len(text.tokens))
main(["eval", "--tasks", "dialogue", "--run", "absent"])
main(["speedrun"])
"""


def test_the_core_works_and_says_what_it_does_not_know(tmp_path):
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "exact number choice",
        "arithmetic spelling counting jsonl",
        "/v1/chat/completions /v1/completions",
        "EagerBackend 3",
    ]
    assert "unknown task 'dialogue'; known: arithmetic" in done.stderr
    assert "unknown command 'speedrun'" in done.stderr
