"""A C++ library is compiled into an empty cache, and taken from there."""

from __future__ import annotations

import pytest

from danalab.native_library import NativeLibrary


@pytest.mark.compiled
def test_an_empty_cache_is_filled(monkeypatch, tmp_path):
    source = tmp_path / "seven.cpp"
    source.write_text('extern "C" int seven() { return 7; }')
    library = NativeLibrary("tiny", "a number", "--seven", "--six", (source,))
    monkeypatch.delenv("DANALAB_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert library.load().seven() == 7
    assert len(list(tmp_path.glob("caches/danalab/tiny-*.so"))) == 1
    monkeypatch.setattr(NativeLibrary, "_build", None)  # the second time nothing is compiled
    assert library.load().seven() == 7
