"""The benchmark of attention compares what computes the same."""

from __future__ import annotations

from bench.attention import measure


def test_every_shape_is_compared_whole_and_by_documents(capsys):
    found = measure(((1, 2, 140, 8),), 1)
    assert [row["documents_of"] for row in found["rows"]] == [None, 100]
    assert found["rows"][0]["seconds"].keys() == {"danalab", "torch"}
    assert capsys.readouterr().out.count("1 2 140 8") == 2
