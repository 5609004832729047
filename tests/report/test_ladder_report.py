import csv
import re
import shutil
import subprocess

import pytest

from danalab.cli.app import main
from danalab.ladder.analysis import analyse
from danalab.ladder.rows import read_ladder
from danalab.report.ladder_report import verdict, write_report
from danalab.report.ladder_tables import as_latex, as_markdown, saved_table
from ladder.planted import plant


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = plant(tmp_path_factory.mktemp("ladder"))
    rows = read_ladder(folder)
    found = analyse(rows, n_bootstrap=20)
    return found, write_report(found, rows, folder / "report", dollars_per_hour=2.0)


def test_the_page_is_whole_and_every_figure_comes_in_three_formats(report):
    _, page = report
    text = page.read_text()
    assert text.count("<svg") == len(list(page.parent.glob("*.png"))) == 7
    assert not re.search(r'(src|href)="https?:', text), "opens offline"
    for picture in page.parent.glob("*.png"):
        assert picture.with_suffix(".svg").is_file()
        lines = list(csv.reader(picture.with_suffix(".csv").open()))
        assert lines[0] == ["panel", "label", "x", "y"]
        assert len(lines) > 2


def test_every_number_links_to_its_run(report):
    found, page = report
    links = re.findall(r'<li><a href="([^"]+)">([^<]+)</a>', page.read_text())
    assert {name for _, name in links} >= {row["name"] for each in found.tuned for row in each.runs}
    assert all(not link.startswith("/") for link, _ in links)


def test_the_verdict_says_who_saved_how_much_and_how_each_was_tuned(report):
    found, _ = report
    first, *_, last = verdict(found)
    assert first.startswith("adana reached adamw's final loss at 4 of 4 sizes, with +")
    assert "adamw 3; adana 3" in last


def test_tables_can_be_pasted(report):
    found, _ = report
    assert as_markdown(saved_table(found)).startswith("| optimizer | parameters | compute saved |")
    latex = as_latex(saved_table(found))
    assert r"\toprule" in latex
    assert r"\%" in latex


def test_a_contender_that_never_gets_there_is_said_to_be_not_reached_and_drawn_so(tmp_path):
    rows = read_ladder(plant(tmp_path, saving=-0.3))
    found = analyse(rows, n_bootstrap=0)
    assert {line[2] for line in saved_table(found)[1] if "laws" not in line[1]} == {"not reached"}
    page = write_report(found, rows, tmp_path / "report")
    assert "adana: not reached" in (page.parent / "compute-saved.csv").read_text()
    assert "at 0 of 4 sizes" in verdict(found)[0]


def test_the_command_writes_the_report_beside_the_ladder(tmp_path, capsys):
    folder = plant(tmp_path)
    assert main(["report", str(folder), "--bootstrap", "5"]) == 0
    assert (folder / "report" / "index.html").is_file()
    assert "report:" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_a_real_browser_opens_the_page_without_complaint(report):
    _, page = report
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--v=0",
        "--dump-dom",
    ]
    done = subprocess.run([*command, page.resolve().as_uri()], capture_output=True, text=True, timeout=120)
    assert "Does it save compute?" in done.stdout
    assert "CONSOLE" not in done.stderr
