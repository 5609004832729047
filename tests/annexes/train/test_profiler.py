import gzip
import json

import torch

from danalab_annexes.train.profiler import ACTIVE, WAIT, WARMUP, ProfilerTrace


def run(context, steps):
    profiler = ProfilerTrace(context)
    profiler.on_start(0)
    for step in range(1, steps + 1):
        torch.ones(4, 4) @ torch.ones(4, 4)
        profiler.after_update(step)
    profiler.close()


def test_a_few_steps_are_traced_with_their_operations_and_the_slowest_are_printed(tmp_path, caplog, watching):
    caplog.set_level("INFO")
    last = WAIT + WARMUP + ACTIVE
    run(watching(), last + 2)
    folder = tmp_path / "profile"
    (trace,) = folder.glob("*.json.gz")
    assert "aten::mm" in (folder / f"operators-{last:08d}-rank0.txt").read_text()
    assert "aten::mm" in caplog.text
    assert trace.name == f"trace-{last:08d}-rank0.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "aten::mm" for event in events) == ACTIVE


def test_a_job_that_is_too_short_says_so(tmp_path, caplog, watching):
    run(watching(), 2)
    assert "there is no trace" in caplog.text
    assert not list((tmp_path / "profile").iterdir())


def test_a_trace_replaces_a_link_and_does_not_write_through_it(tmp_path, watching):
    target = tmp_path / "precious"
    target.write_text("kept")
    trace = ProfilerTrace(watching())
    trace.on_start(0)
    (tmp_path / "profile" / "trace-00000007-rank0.json.gz").symlink_to(target)
    for step in range(1, 9):
        torch.ones(2).sum()
        trace.after_update(step)
    trace.close()
    assert target.read_text() == "kept"
    with gzip.open(tmp_path / "profile" / "trace-00000007-rank0.json.gz") as file:
        assert file.read().lstrip().startswith(b"{")
