"""The tables of docs/speed.md and notes/speed.md are those of the stored results, for each instruction set."""

from __future__ import annotations

import json
import re

from bench.speed_page import PAGES, fill, tables

from danalab_bench.pages import benchmark, store_benchmarks


def test_the_page_is_what_the_stored_results_say():
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    assert list(map(fill, pages)) == pages, "run: python bench/speed_page.py"
    assert sorted(re.findall("<!-- speed: (.*?) -->", "".join(pages))) == sorted(tables())


def test_both_instruction_sets_stand_side_by_side_and_a_column_without_values_is_left_out(tmp_path):
    for verb in ("optim", "generate"):
        (tmp_path / f"{verb}_cpu.json").write_text(json.dumps(benchmark(f"{verb}_cpu")))
    store_benchmarks([tmp_path / "generate_cpu.json"], tmp_path)
    found = benchmark("optim_cpu", tmp_path)
    found["sizes"]["20M"]["results"]["adana:fused"]["ratio"]["median"] = 7.0
    found["machine"]["cpu"] = "CPU of another kind"
    (tmp_path / "optim_cpu_v3.json").write_text(json.dumps(found))
    made = tables(tmp_path)
    assert re.search(r"^\| ADana, one pass \| 0\.\d\d \| 7\.00 \|", made["steps"], re.MULTILINE)
    assert made["decoding"].startswith("| decoder | batch 1, AVX-512 | batch 8, AVX-512 | batch 32, AVX-512 |\n")
    assert "AVX2: 2 cores, CPU of another kind" in made["machines"]
