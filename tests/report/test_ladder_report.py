"""The report of a ladder, from one with planted truths."""

import csv
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from danalab.cli.app import main
from danalab.ladder.fit.statistics import Interval
from danalab.ladder.saving import Saved
from danalab.report import ladder_report
from danalab.report.figures.drawing import save_figure
from danalab.report.figures.laws import law_figure
from danalab.report.formats import as_latex, as_markdown
from danalab.report.headline import headlines, interval_words, saved_words, tuning_words, verdict
from danalab.report.ladder_report import FIGURES, read_report_data, write_report
from danalab.report.tables import saved_table
from ladder.planted import plant
from required_tools import CHROMIUM

PACKED_LIMIT = 2_000_000


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """(data, page) of a ladder whose contender saves 40%, as the command writes it; of most pictures only the SVG."""
    folder = plant(tmp_path_factory.mktemp("ladder"), multipliers=(0.25, 0.5, 1.0, 2.0, 4.0))

    def save(figure, stem, svg=None):
        if stem.name in ("compute-saved", "headline"):
            return save_figure(figure, stem, svg)
        stem.with_suffix(".svg").write_text(svg)
        return [stem.with_suffix(".svg")]

    written = []

    def write(data, *args, **kwargs):
        written.append(data)
        return write_report(data, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ladder_report, "save_figure", save)
        patch.setattr(ladder_report, "write_report", write)
        assert main(["report", str(folder), "--bootstrap", "5", "--dollars-per-hour", "2"]) == 0
    return written[0], folder / "report" / "report.html"


@pytest.fixture(scope="module")
def sad(tmp_path_factory):
    """(data, page, names of runs that diverged) of a ladder whose contender never gets there."""
    folder = plant(tmp_path_factory.mktemp("sad"), saving=-0.3)
    lost = spoil(folder, 2)
    data = read_report_data(folder, n_bootstrap=0)
    return data, write_report(data, folder / "report"), lost


def spoil(folder, count=1):
    """Let the last runs of a planted ladder end without a finite loss; returns their names."""
    file = folder / "ladder.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows[-count:]:
        row |= {"status": "nonfinite", "final_loss": None}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [row["name"] for row in rows[-count:]]


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.addresses, self.anchors, self.tags = [], set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.add(tag)
        self.anchors.add(found.get("id"))
        if tag == "a":
            self.addresses.append(found["href"])


def test_every_figure_is_on_the_page_and_comes_with_its_numbers(report):
    _, page = report
    pictures = drawn(page)
    assert page.read_text().count("<svg") == len(pictures) == 8
    for stem in pictures:
        lines = list(csv.reader((page.parent / f"{stem}.csv").open()))
        assert lines[0] == ["panel", "label", "x", "y"]
        assert len(lines) > 2
    has_all_formats(page, ["compute-saved", "headline"])


@pytest.mark.slow
def test_every_figure_comes_in_three_formats(report, tmp_path):
    page = write_report(report[0], tmp_path)
    has_all_formats(page, [*drawn(report[1]), "headline"])


def drawn(page):
    """Names of the figures beside a page."""
    return sorted(each.stem for each in page.parent.glob("*.svg") if each.stem != "headline")


def has_all_formats(page, stems):
    for stem in stems:
        assert (page.parent / f"{stem}.svg").is_file()
        assert (page.parent / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
        assert (page.parent / f"{stem}.pdf").read_bytes().startswith(b"%PDF")


def test_a_share_without_meaning_is_not_determined_and_one_of_few_seeds_is_a_whole_percent_in_brackets():
    saved = Saved(0.1234, Interval(0.1, 0.2, 0.95), False, 2.5, 3, 3, 0)
    assert saved_words(saved) == "+12.3%"
    assert saved_words(replace(saved, interval=None)) == "(+12%)"
    assert saved_words(replace(saved, saved=-7e27)) == "not determined"
    assert interval_words(Interval(-7e27, 1.0, 0.95)) == "not determined"
    assert interval_words(Interval(-2.5, 0.5, 0.95)) == "-250.0% to +50.0%"


def test_the_tables_of_compute_saved_say_how_they_were_made_and_tuned(report):
    data, page = report
    for file in ("table-saved.md", "table-headline.md"):
        assert "Compute saved is 1 - C/C0 at equal validation loss" in (page.parent / file).read_text()
    assert "\\caption{Compute saved is" in (page.parent / "table-saved.tex").read_text()
    mine, base = (next(iter(data.analysis.at(opt))) for opt in ("adana", "adamw"))
    assert tuning_words(mine, base) == "5"
    rates = (base.lr, 2 * base.lr)
    edge, one = (replace(base, trials=3, rates=tried, all_rates=tried) for tried in (rates, rates[:1]))
    assert tuning_words(mine, edge) == "5, adamw 3; edge: adamw"
    assert tuning_words(mine, one) == "5, adamw 3; one rate: adamw"
    (itself,) = [line for line in saved_table(data.analysis)[1] if line[0] == "adamw itself"][-1:]
    assert itself[2] == "+0.0%"
    low, high = (float(bound.rstrip("%")) for bound in itself[3].split(" to "))
    assert low < 0 < high


def test_figures_without_data_are_named_with_the_way_to_get_them(report):
    _, page = report
    text = page.read_text()
    for stem in set(FIGURES) - set(drawn(page)):
        assert f"<strong>{stem}</strong>" in text
    assert "--collect-tau-stats" in text
    assert "--log-dynamics" in text


def test_the_page_needs_no_script_and_no_network(report):
    _, page = report
    text = page.read_text()
    assert not re.search(r'(src|href)="https?:', text)
    assert "script" not in Tags(text).tags


def test_every_number_links_to_its_run_and_every_link_leads_somewhere(report):
    data, page = report
    found = Tags(page.read_text())
    runs = {row["name"] for row in data.rows}
    assert runs <= {address.rpartition("/")[2] for address in found.addresses}
    assert all(not address.startswith("/") for address in found.addresses)
    assert {address[1:] for address in found.addresses if address.startswith("#")} <= found.anchors


def test_the_headline_says_how_much_at_which_scale_how_well_known_and_after_how_many_trials(report):
    (headline,) = headlines(report[0])
    assert headline.opt == "adana"
    assert 35 < float(headline.answer.strip("+%")) < 45
    scale, interval, effort = headline.lines
    assert scale == "at 640k parameters"
    assert re.match(r"95% interval \+\d+\.\d% to \+\d+\.\d%", interval)
    assert effort == "3 seeds each; 5 learning rates tried by each"


def test_the_verdict_says_who_saved_how_much_and_how_each_was_tuned(report):
    first, *_, last = verdict(report[0].analysis)
    assert first.startswith("adana reached adamw's final loss at 4 of 4 sizes; compute saved: +")
    assert "adamw 5; adana 5" in last


def test_what_figures_have_in_common_is_on_the_page_once(report):
    names = re.findall(r'<(?:path|g) id="([^"]+)"', report[1].read_text())
    assert len(names) == len(set(names))


@pytest.mark.slow
def test_distances_from_the_baseline_are_those_at_the_same_horizon(tmp_path):
    rows = [json.loads(line) for line in (plant(tmp_path) / "ladder.jsonl").read_text().splitlines()]
    half = [{**row, "name": f"{row['name']}-half", "tokens": row["tokens"] / 2, "flops": row["flops"] / 2,
             "final_loss": row["final_loss"] + 1} for row in rows]  # fmt: skip
    (tmp_path / "ladder.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (*rows, *half)))
    _, right = law_figure(read_report_data(tmp_path, n_bootstrap=0)).axes  # pyright: ignore[reportAttributeAccessIssue]
    (line,) = [line for line in right.get_lines() if line.get_label() == "adana"]
    assert len(line.get_ydata()) == 8
    assert max(line.get_ydata()) < 0, "the contender is better at every size and horizon"


def test_tables_can_be_pasted(report):
    found = report[0].analysis
    assert r"$\ge$ 0.1 & 1\^{}2" in as_latex((["a", "b"], [[">= 0.1", "1^2"]]))
    assert as_markdown(saved_table(found)).startswith("| optimizer | parameters | compute saved |")
    latex = as_latex(saved_table(found))
    assert r"\toprule" in latex
    assert r"\%" in latex
    linked = as_markdown(saved_table(found, lambda row: f"runs/{row['name']}"))
    assert re.search(r"\| \[\+\d+\.\d%\]\(runs/adana-640000-\S+\) \|", linked)


def test_fewer_than_three_seeds_are_said_to_leave_the_noise_unknown(tmp_path):
    data = read_report_data(plant(tmp_path, seeds=2), n_bootstrap=0)
    assert "noise not known" in headlines(data)[0].lines
    assert any("the noise is not known" in sentence for sentence in verdict(data.analysis))
    assert {line[3] for line in saved_table(data.analysis)[1] if "laws" not in line[1]} == {"noise not known"}


@pytest.mark.slow
def test_a_contender_that_never_reaches_the_loss_has_a_negative_saving_and_is_said_not_to(sad):
    data, page, _ = sad
    saved = [line[2] for line in saved_table(data.analysis)[1] if line[0] == "adana" and "laws" not in line[1]]
    assert len(saved) == 4
    assert all(-40 < float(cell.strip("(%)")) < -20 for cell in saved)
    assert "ends where the baseline is at 7" in headlines(data)[0].known
    drawn = [line for line in csv.reader((page.parent / "compute-saved.csv").open()) if line[1] == "adana"]
    assert [float(y) < 0 for *_, y in drawn] == [True] * 4
    assert "at 0 of 4 sizes" in verdict(data.analysis)[0]


def test_sizes_without_curves_are_counted_as_such(tmp_path):
    folder = plant(tmp_path)
    for curve in folder.glob("adana-640000-*.jsonl"):
        curve.unlink()
    data = read_report_data(folder, n_bootstrap=0)
    assert "at 3 of 4 sizes" in verdict(data.analysis)[0]
    assert "at the 3 sizes with curves" in verdict(data.analysis)[0]


def test_text_of_rows_is_text_in_every_format(tmp_path):
    table = ["optimizer"], [["<script>alert(1)</script> | x"]]
    assert as_markdown(table).splitlines()[2] == "| &lt;script>alert(1)&lt;/script> \\| x |"


@pytest.mark.slow
def test_runs_whose_loss_was_not_finite_are_counted_and_listed(sad):
    _, page, lost = sad
    text = page.read_text()
    assert "2 of 40 runs have no final loss and are in no fit: 2 whose loss was not finite, 0 unfinished." in text
    section = text[text.index('id="unknown"') : text.index('id="runs"')]
    assert all(name in section for name in lost)


@pytest.mark.slow
def test_a_packed_report_stands_alone_is_small_and_says_nothing_of_the_machine(tmp_path):
    folder = plant(tmp_path / "ladder")
    out = tmp_path / "published"
    assert main(["report", str(folder), "--out", str(out), "--pack", "--bootstrap", "5"]) == 0
    shutil.rmtree(folder)
    files = [file for file in out.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < PACKED_LIMIT
    assert {
        "report.html",
        "headline.png",
        "headline.svg",
        "headline.pdf",
        "table-headline.md",
        "ladder.jsonl.gz",
        "analysis.json",
        "table-saved.md",
    } <= {file.name for file in files}
    assert not any(str(tmp_path).encode() in file.read_bytes() for file in files)
    linked = [address for address in Tags((out / "report.html").read_text()).addresses if address[0] != "#"]
    assert all((out / address).exists() for address in linked)
    assert read_report_data(out, n_bootstrap=0).analysis.saved, "and can be read again"


def test_packing_needs_a_folder(tmp_path, capsys):
    assert main(["report", str(plant(tmp_path)), "--pack"]) == 2
    assert "--out" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_real_browser_opens_the_page_without_complaint(report):
    _, page = report
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--v=0",
        "--dump-dom",
    ]
    done = subprocess.run([*command, page.resolve().as_uri()], capture_output=True, text=True, timeout=120)
    assert "How much compute does it save?" in done.stdout
    assert "CONSOLE" not in done.stderr


@pytest.mark.slow
def test_the_tables_alone_load_neither_figures_nor_torch(report):
    script = (
        "import sys; from danalab.cli.app import main; "
        f"code = main(['report', {str(report[1].parents[1])!r}, '--tables-only', '--bootstrap', '0']); "
        "sys.exit(code or sorted({'torch', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Compute saved against adamw" in done.stdout
