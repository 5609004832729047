"""Refresh the settings tables of docs/optimizers.md from the registry.

python docs/build_optimizers.py
"""

from __future__ import annotations

from pathlib import Path

from danalab.report.tables.optimizer_docs import refresh

if __name__ == "__main__":
    page = Path(__file__).with_name("optimizers.md")
    page.write_text(refresh(page.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"refreshed {page}")
