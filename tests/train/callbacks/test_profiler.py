import gzip
import json

import torch

from danalab.train.callbacks.profiler import ACTIVE, WAIT, WARMUP, ProfilerTrace


def run(folder, steps):
    profiler = ProfilerTrace(folder)
    profiler.on_start(0)
    for step in range(1, steps + 1):
        torch.ones(4, 4) @ torch.ones(4, 4)
        profiler.after_update(step, False)
    profiler.close()


def test_a_few_steps_are_traced_with_their_operations_and_the_slowest_are_printed(tmp_path, caplog):
    caplog.set_level("INFO")
    last = WAIT + WARMUP + ACTIVE
    run(tmp_path, last + 2)
    (trace,) = tmp_path.glob("*.json.gz")
    assert "aten::mm" in (tmp_path / f"operators-{last:08d}-rank0.txt").read_text()
    assert "aten::mm" in caplog.text
    assert trace.name == f"trace-{last:08d}-rank0.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "aten::mm" for event in events) == ACTIVE


def test_a_job_that_is_too_short_says_so(tmp_path, caplog):
    run(tmp_path, 2)
    assert "there is no trace" in caplog.text
    assert not list(tmp_path.iterdir())


def test_a_trace_replaces_a_link_and_does_not_write_through_it(tmp_path):
    target = tmp_path / "precious"
    target.write_text("kept")
    trace = ProfilerTrace(tmp_path / "profile")
    trace.on_start(0)
    (tmp_path / "profile" / "trace-00000007-rank0.json.gz").symlink_to(target)
    for step in range(1, 9):
        torch.ones(2).sum()
        trace.after_update(step, logged=False)
    trace.close()
    assert target.read_text() == "kept"
    with gzip.open(tmp_path / "profile" / "trace-00000007-rank0.json.gz") as file:
        assert file.read().lstrip().startswith(b"{")
