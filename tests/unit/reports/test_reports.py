"""Figures and pages: what is drawn where, what is escaped, and that a page needs no other file."""

import base64
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from faenet_calc.reports.learning import _learning_curves, evaluation_report, evaluation_section, training_report
from faenet_calc.reports.pages import figure_html
from faenet_calc.reports.plots import bar_plot, interval_plot, line_plot, parity_plot
from faenet_calc.reports.screening import _constant, _figures, _summary, gas_in_words
from faenet_calc.screening.results import Row
from faenet_calc.training.assessment import Assessment, StructureRecord


def labels(axis) -> list[str]:
    """Tick labels inside the visible range."""
    axis.figure.draw_without_rendering()
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [t.label1.get_text() for t in ticks if low <= t.get_loc() <= high and t.label1.get_text()]


def test_parity_plots_have_equal_axes_that_hold_every_point():
    reference, predicted = np.array([-3.0, 1.0, 2.0, np.nan]), np.array([-2.5, 1.5, 9.0, 0.0])
    (axes,) = parity_plot("energy", reference, predicted, unit="eV").axes
    assert axes.get_xlim() == axes.get_ylim() and axes.get_aspect() == 1.0
    low, high = axes.get_xlim()
    assert low < -3.0 and high > 9.0
    assert axes.collections[0].get_offsets().tolist() == [[-3.0, -2.5], [1.0, 1.5], [2.0, 9.0]]
    assert axes.get_xlabel() == "reference (eV)" and axes.get_ylabel() == "prediction (eV)"
    assert "MAE 2.67 eV" in axes.texts[0].get_text() and "n = 3" in axes.texts[0].get_text()
    assert 3 <= len(labels(axes.xaxis)) <= 7


@pytest.mark.parametrize("value", [0.0, -4.2, 1e-9])
def test_a_single_value_has_a_range(value):
    (axes,) = parity_plot("energy", [value], [value], unit="eV").axes
    assert axes.get_xlim()[0] < value < axes.get_xlim()[1]


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0.2, 3.0, {"0.2", "1", "2"}), (5.0, 45.0, {"10", "20"}), (1e-7, 1e-3, {"0.001"})]
)
def test_logarithmic_axes_have_readable_ticks(low, high, expected):
    y = np.geomspace(low, high, 50)
    (axes,) = line_plot("loss", {"a": (range(50), y)}, x_label="step", y_label="loss", log_y=True).axes
    found = labels(axes.yaxis)
    assert expected <= set(found) and 3 <= len(found) <= 12


def test_lines_leave_out_what_cannot_be_drawn():
    series = {"a": ([0, 1, 2, 3], [1.0, np.nan, -1.0, 2.0]), "empty": ([0], [np.inf])}
    (axes,) = line_plot("loss", series, x_label="step", y_label="loss", log_y=True).axes
    assert [line.get_label() for line in axes.lines] == ["a"]
    assert axes.lines[0].get_xydata().tolist() == [[0.0, 1.0], [3.0, 2.0]] and axes.get_legend() is None
    assert line_plot("loss", {"empty": series["empty"]}, x_label="", y_label="") is None
    assert parity_plot("energy", [], [], unit="eV") is None
    assert bar_plot("errors", {}, x_label="") is None


def test_bars_are_in_the_given_order_from_the_top():
    (axes,) = bar_plot("errors", {"Cu": 3.0, "O": 1494.2}, x_label="error (meV)").axes
    assert [bar.get_width() for bar in axes.patches] == [3.0, 1494.2]
    assert [text.get_text() for text in axes.texts] == ["3", "1494"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Cu", "O"] and axes.yaxis_inverted()


def test_intervals_are_labelled_and_as_long_as_given():
    (axes,) = interval_plot("t", ["hcp", "top"], [-1.2, -0.9], [0.05, 0.2], y_label="eV").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["hcp", "top"]
    assert [text.get_text() for text in axes.texts] == ["\N{MINUS SIGN}1.20", "\N{MINUS SIGN}0.90"]
    (bars,) = axes.containers
    ends = [segment[:, 1] for segment in bars.lines[2][0].get_segments()]
    assert np.allclose(ends, [[-1.25, -1.15], [-1.1, -0.7]])


def test_figures_are_embedded_and_reproducible():
    figure = line_plot("a < b & c", {"x": ([0, 1], [1, 2])}, x_label="step", y_label="y")
    markup = figure_html(figure)
    assert markup == figure_html(figure)
    alt, data = re.fullmatch(r'<img alt="(.*)" src="data:image/svg\+xml;base64,(.*)">', markup).groups()
    assert alt == "a &lt; b &amp; c"
    assert ElementTree.fromstring(base64.b64decode(data)).tag == "{http://www.w3.org/2000/svg}svg"


@pytest.fixture
def assessment() -> Assessment:
    rng = np.random.default_rng(0)
    records = []
    for index in range(20):
        forces = rng.normal(size=(3, 3))
        off = 5.0 if index == 7 else 0.01
        records.append(
            StructureRecord(
                index=index,
                numbers=np.array([29, 29, 8]),
                energy=-9.0,
                predicted_energy=-9.03,
                forces=forces,
                predicted_forces=forces + off,
            )
        )
    metrics = {"energy_mae_per_atom": 0.01, "forces_mae": 0.02, "forces_mae[Cu slab]": 0.03}
    return Assessment(metrics=metrics, n_structures=20, records=tuple(records))


def test_the_worst_structures_come_first(assessment):
    section = evaluation_section("val", assessment, [f"set.extxyz#{n}" for n in range(20)])
    assert section.name == "validation" and len(section.worst) == 15
    worst = section.worst[0]
    assert (worst.index, worst.formula, worst.source) == (7, "Cu2O", "set.extxyz#7")
    assert worst.force_error == pytest.approx(5e3 * 3**0.5) and worst.energy_error == pytest.approx(-10.0)
    assert [(row.title, row.value, row.unit) for row in section.metrics] == [
        ("energy MAE per atom", "10", "meV"),
        ("force MAE", "20", "meV/Å"),
    ]
    assert all(isinstance(figure, Figure) for figure in section.figures) and len(section.figures) == 3


def test_pages_stand_alone_and_escape_what_users_wrote(assessment, tmp_path):
    history = [{"step": 10 * n, "train_loss": 1 / n, "loss": 2 / n, "lr": 1e-3} for n in range(1, 5)]
    section = evaluation_section("test", assessment, ["<script>alert(1)</script>"] * 20)
    training_report(
        tmp_path / "t.html", title="<b>mine</b>", history=history, sections=[section], config="a: <x>", notes="1 & 2"
    )
    evaluation_report(tmp_path / "e.html", title="<b>mine</b>", sections=[section], symmetry=[("Rot-I", "< 1 meV")])
    training, evaluation = ((tmp_path / name).read_text(encoding="utf-8") for name in ("t.html", "e.html"))
    for page in (training, evaluation):
        assert "&lt;b&gt;mine&lt;/b&gt;" in page and "<b>" not in page and "<script" not in page
        assert "http" not in page and "&lt;script&gt;" in page
    assert "a: &lt;x&gt;" in training and "1 &amp; 2" in training and "Learning curves" in training
    assert "&lt; 1 meV" in evaluation
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.html", "t.html"]


def test_a_single_validation_is_no_learning_curve(assessment, tmp_path):
    history = [{"step": 10 * n, "train_loss": 1 / n, "loss": 2 / n, "lr": 1e-3} for n in (1, 2)]
    pages = []
    for rows in (history[:1], history):
        training_report(tmp_path / "t.html", title="x", history=rows, sections=[], config="", notes="")
        pages.append((tmp_path / "t.html").read_text(encoding="utf-8"))
    assert ["Learning curves" in page for page in pages] == [False, True]


def _training_curve(steps):
    history = [{"step": step, "train_loss": 1.0, "loss": 2.0, "lr": 1e-3} for step in steps]
    lines = {line.get_label(): line for line in _learning_curves(history)[0].axes[0].lines}
    assert lines["validation"].get_xdata().tolist() == steps
    return lines["training"].get_xdata().tolist()


def test_training_losses_averaged_over_few_batches_are_not_drawn():
    assert _training_curve([100.0, 200.0, 300.0, 304.0]) == [100.0, 200.0, 300.0]
    assert _training_curve([3.0, 103.0, 203.0, 263.0]) == [103.0, 203.0, 263.0]


def test_training_losses_of_short_epochs_are_drawn():
    assert _training_curve([4.0, 8.0, 12.0]) == [4.0, 8.0, 12.0]
    assert _training_curve([2.0]) == [2.0]


def test_evaluations_say_what_the_set_and_the_metrics_are(assessment, tmp_path):
    metrics = assessment.metrics | {"energy_within": 0.1, "energy_forces_within": 0.0, "forces_cosine": 0.9}
    found = Assessment(metrics=metrics, n_structures=20, records=assessment.records)
    evaluation_report(tmp_path / "e.html", title="t", sections=[evaluation_section("data", found)])
    page = (tmp_path / "e.html").read_text(encoding="utf-8")
    assert "not trained on these files" in page
    for words in ("EwT: share", "below 20 meV", "EFwT: share", "below 30 meV/Å", "Force cosine: mean"):
        assert words in page
    assert evaluation_section("test", assessment).meanings == ()


def _row(site, **values):
    row = {"slab": "Cu(111)", "adsorbate": "CO", "orientation": "upright-0", "coverage": 1, "converged": True}
    return Row(key=f"{site}{values}", site=site, **(row | values))


def test_screening_summaries_have_plurals_and_kinds_of_flags():
    rows = [_row("a"), _row("b", anomalies=("left-site",)), _row("c", anomalies=("left-site",), converged=False)]
    rows += [_row("d", error="broken"), _row("e", duplicate_of="a")]
    assert _summary(rows, 1, 2) == (
        "5 configurations of 1 adsorbate on 2 slabs: 1 failed, 2 flagged (2 left-site, 1 not converged), 1 duplicate."
    )
    assert _summary(rows[:1], 2, 1) == "1 configuration of 2 adsorbates on 1 slab: 0 failed, 0 flagged, 0 duplicates."


def test_constant_columns_are_stated_once():
    names = ("slab", "adsorbate", "coverage", "orientation", "converged", "duplicate_of")
    rows = [_row(site).to_json() | {"anomalies": flag} for site, flag in (("a", ""), ("b", "left-site"))]
    assert _constant(rows) == dict(zip(names, ("Cu(111)", "CO", "1", "upright-0", "yes", "none"), strict=True))
    assert _constant([]) == {}


def test_gas_references_are_given_per_adsorbate():
    table = {"O": "H2O", "H": "H2", "C": "CO", "N": "N2"}
    adsorbates = {"CO": ["C", "O"], "O": ["O"], "H": ["H"], "OH": ["O", "H"], "CH3": ["C", "H", "H", "H"]}
    words = gas_in_words(table, adsorbates)
    minus = "\N{MINUS SIGN}"
    assert words["CO"] == "gas CO" and words["H"] == "½ H2" and words["O"] == f"H2O {minus} H2"
    assert words["OH"] == f"H2O {minus} ½ H2" and words["CH3"] == f"CO + 2.5 H2 {minus} H2O"


@pytest.mark.parametrize(
    ("systems", "titles"),
    [
        ([("Cu", "CO")], ["CO on Cu"]),
        ([("Cu", "CO"), ("Pt", "CO")], ["Lowest adsorption energy of CO", "Distinct relaxed configurations"]),
        ([("Cu", "CO"), ("Cu", "O")], ["Lowest adsorption energy on Cu", "Distinct relaxed configurations"]),
        ([(f"Cu{n}", "CO") for n in range(9)], ["Distinct relaxed configurations"]),
        (
            [("Cu", "CO"), ("Cu", "O"), ("Pt", "CO"), ("Pt", "O")],
            ["Lowest adsorption energy (eV)", "Distinct relaxed configurations"],
        ),
    ],
)
def test_heat_maps_have_several_rows_and_columns(systems, titles):
    rows = [_row("top", slab=slab, adsorbate=name, rank=1, adsorption_energy=-1.0) for slab, name in systems]
    assert [figure.axes[0].get_title() for figure in _figures(rows, rows)] == titles
