"""Screening: from slab and adsorbates to a table, interrupted and resumed, in parts, with poison, and its report."""

import csv
import json
import math
import shutil
import subprocess
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from ase.build import fcc111, molecule
from click.testing import CliRunner

from faenet_calc import FAENetCalculator, relax, screen
from faenet_calc.cli import main
from faenet_calc.errors import InputError
from faenet_calc.reports.screening import write_screening_report
from faenet_calc.screening import results
from faenet_calc.screening.results import Row
from faenet_calc.screening.screen import merge_screen
from faenet_calc.screening.store import ScreenStore
from faenet_calc.screening.worker import RelaxSettings
from faenet_calc.simulate.trajectory import read_snapshots

FAST = RelaxSettings(fmax=0.2, steps=60)
ADSORBATES = ["H", "O"]


def slab(symbol="Cu"):
    return fcc111(symbol, (2, 2, 2), a=3.63, vacuum=6.0)


@pytest.fixture(scope="module")
def calc():
    return FAENetCalculator("metals-s", frames="one")


@pytest.fixture(scope="module")
def finished(calc, tmp_path_factory):
    folder = tmp_path_factory.mktemp("screen") / "run"
    return screen([slab()], ADSORBATES, folder, calculator=calc, settings=FAST)


def _table(result):
    return [(row.key, round(row.adsorption_energy, 4), row.rank, row.duplicate_of) for row in result.rows]


def _recorded_keys(folder):
    lines = [line for path in (folder / "journals").glob("*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line)["key"] for line in lines]


def test_table_has_the_promised_columns(finished):
    with (finished.folder / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    promised = {
        "key",
        "slab",
        "adsorbate",
        "site",
        "adsorption_energy",
        "uncertainty",
        "converged",
        "anomalies",
        "error",
    }
    assert promised <= set(rows[0])
    assert len(rows) == len({row["key"] for row in rows}) == len(finished.rows)
    assert {row["adsorbate"] for row in rows} == set(ADSORBATES)
    for name in ("results.parquet", "structures.db", "inputs.json", "references.json"):
        assert (finished.folder / name).stat().st_size > 0


def test_adsorption_energy_is_the_difference_of_three_relaxations(finished, calc):
    row = next(row for row in finished.rows if row.adsorbate == "H" and row.rank == 1)
    store = ScreenStore(finished.folder)
    clean = relax(slab(), calc, fmax=0.02, steps=60).energy  # all atoms free or the lower half fixed: nearly the same
    hydrogen = relax(molecule("H2"), calc, optimizer="BFGS", fmax=0.01).energy
    energy = float(calc.predict([store.relaxed(row.key)])[0]["energy"])
    assert row.adsorption_energy == pytest.approx(energy - clean - hydrogen / 2, abs=0.02)
    assert row.adsorption_energy != pytest.approx(energy - clean - hydrogen, abs=0.5)  # the wrong reference


def test_uncertainty_is_that_of_the_difference(finished, calc):
    row = next(row for row in finished.rows if row.adsorbate == "O" and row.rank == 1)
    store = ScreenStore(finished.folder)
    (clean,), gas = store.reference_structures("slabs").values(), store.reference_structures("gas")
    structures = [store.relaxed(row.key), clean, gas["H2O"], gas["H2"]]
    expected = calc.uncertainty_of_difference(structures, [1, -1, -1, 1])  # O = H2O - H2
    assert row.uncertainty == pytest.approx(expected, rel=1e-3)
    assert np.std(row.error_samples) == pytest.approx(expected, rel=0.4)
    uncorrelated = calc.predict(structures, ["energy_uncertainty"])
    independent = np.linalg.norm([one["energy_uncertainty"] for one in uncorrelated])
    assert row.uncertainty != pytest.approx(independent, rel=0.05)


def test_ranked_configurations_share_the_probability_of_being_the_most_stable(finished):
    for name in ADSORBATES:
        rows = [row for row in finished.rows if row.adsorbate == name]
        ranked = [row.most_stable_probability for row in rows if row.rank is not None]
        assert sum(ranked) == pytest.approx(1.0) and ranked[0] == max(ranked) > ranked[-1]
        assert all(row.most_stable_probability is None for row in rows if row.rank is None)


def test_the_probability_includes_the_error_of_site_energies_against_dft():
    """Closed form for two configurations without correlated errors: Φ(ΔE / (√2 s))."""
    row = Row(key="a", slab="Pd(111)", adsorbate="O", site="fcc", orientation="", coverage=1, converged=True, rank=1)
    row = replace(row, adsorption_energy=1.3, error_samples=(0.0,) * 64)
    other = replace(row, key="b", site="hcp", rank=2, adsorption_energy=1.34)
    far = replace(row, key="c", site="top", rank=3, adsorption_energy=2.9)
    first, second, third = results._with_probabilities([row, other, far])
    expected = 0.5 * (1 + math.erf(0.04 / (2 * results.SITE_ERROR_EV)))
    assert first.most_stable_probability == pytest.approx(expected, abs=0.02)
    assert second.most_stable_probability == pytest.approx(1 - expected, abs=0.02)
    assert third.most_stable_probability == 0.0
    assert results.not_distinguished([first, second, third], first) == ["hcp"]


def test_committees_estimate_the_uncertainty_from_their_members(tmp_path, calc):
    members = ["metals-s", "copper-s"]
    committee = FAENetCalculator(members, frames="one")
    result = screen([slab()], ["H"], tmp_path / "run", calculator=committee, settings=FAST)
    row, store = result.best()[0], ScreenStore(tmp_path / "run")
    (clean,), gas = store.reference_structures("slabs").values(), store.reference_structures("gas")
    energies = []
    for name in members:
        found = FAENetCalculator(name, frames="one").predict([store.relaxed(row.key), clean, gas["H2"]])
        energies.append(np.dot([1, -1, -0.5], [one["energy"] for one in found]))
    assert row.uncertainty == pytest.approx(np.std(energies), abs=1e-3)


def test_steps_with_one_frame_are_counted(finished, tmp_path):
    calc = FAENetCalculator("metals-s", frames="pair")
    result = screen([slab()], ["H"], tmp_path / "run", calculator=calc, settings=FAST)
    for row in result.rows:
        recorded = len(read_snapshots(ScreenStore(tmp_path / "run").trajectory(row.key))) - 1
        assert row.n_steps > recorded


def test_a_folder_is_not_used_twice_by_accident(finished, calc):
    with pytest.raises(InputError, match=r"resume=True \(--resume"):
        screen([slab()], ADSORBATES, finished.folder, calculator=calc, settings=FAST)
    with pytest.raises(InputError, match="adsorbates"):
        screen([slab()], ["H"], finished.folder, calculator=calc, settings=FAST, resume=True)


@pytest.mark.parametrize(
    ("slabs", "adsorbates", "message"),
    [
        ([slab()], "CO", "adsorbates is 'CO', expected a list"),
        (slab(), ["H"], "slabs is one Atoms, expected a list"),
        ("slab.traj", ["H"], "slabs is 'slab.traj', expected a list"),
    ],
)
def test_one_slab_or_adsorbate_is_not_taken_apart(slabs, adsorbates, message, calc, tmp_path):
    with pytest.raises(InputError, match=message):
        screen(slabs, adsorbates, tmp_path / "run", calculator=calc, settings=FAST)
    assert not (tmp_path / "run").exists()


def test_an_interrupted_screening_resumes_to_the_same_table(finished, calc, tmp_path, monkeypatch):
    folder, record, calls = tmp_path / "run", ScreenStore.record, count()

    def interrupted(self, row):
        record(self, row)
        if next(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(ScreenStore, "record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        screen([slab()], ADSORBATES, folder, calculator=calc, settings=FAST)
    monkeypatch.setattr(ScreenStore, "record", record)
    assert len(_recorded_keys(folder)) == 3
    resumed = screen([slab()], ADSORBATES, folder, calculator=calc, settings=FAST, resume=True)
    assert _table(resumed) == _table(finished)
    keys = _recorded_keys(folder)
    assert len(keys) == len(set(keys)) == len(finished.rows)


def test_a_journal_line_cut_by_a_kill_is_ignored(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    journal = next((folder / "journals").glob("*.jsonl"))
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][: len(lines[-1]) // 2])
    assert len(ScreenStore(folder).rows()) == len(finished.rows) - 1


def test_finished_keys_are_those_of_the_rows_after_every_change(finished, tmp_path):
    source = ScreenStore(finished.folder)
    (tmp_path / "journals").mkdir()
    journal, store = tmp_path / "journals" / "1.jsonl", ScreenStore(tmp_path)
    lines = [json.dumps(row.to_json()) + "\n" for row in source.rows().values()]
    assert store.finished() == set() and len(lines) > 3
    for number, cut in ((1, 0), (2, 9), (3, 0), (1, 0), (0, 0)):  # grows, ends in a cut line, shrinks
        text = "".join(lines[:number]) + lines[number][:cut]
        journal.write_text(text)
        assert store.finished() == set(store.rows()) == {json.loads(line)["key"] for line in lines[:number]}
    journal.unlink()
    assert store.finished() == set()


def test_shards_add_up(finished, calc, tmp_path):
    folder = tmp_path / "shards"
    for part in range(2):
        screen([slab()], ADSORBATES, folder, calculator=calc, settings=FAST, shard=(part, 2))
    assert _table(merge_screen(folder)) == _table(finished)
    keys = _recorded_keys(folder)
    assert len(keys) == len(set(keys))


def test_a_slab_that_cannot_be_computed_harms_no_other(calc, tmp_path):
    result = screen([slab(), slab("Zn")], ["H"], tmp_path / "run", calculator=calc, settings=FAST)
    good = [row for row in result.rows if row.slab.startswith("Cu")]
    bad = [row for row in result.rows if row.slab.startswith("Zn")]
    assert good and all(row.error is None for row in good)
    assert bad and all("Zn" in row.error and row.rank is None for row in bad)


def test_export(calc, tmp_path):
    result = screen([slab()], ["H"], tmp_path / "run", calculator=calc, settings=FAST, top=1, export="vasp")
    (folder,) = (tmp_path / "run" / "export" / "vasp").iterdir()
    assert folder.name == result.best()[0].key
    assert {path.name for path in folder.iterdir()} == {"POSCAR", "INCAR", "KPOINTS", "README"}
    with pytest.raises(InputError, match="vasp"):
        screen([slab()], ["H"], tmp_path / "other", calculator=calc, export="siesta")


def test_two_workers_give_the_same_table(finished, tmp_path):
    parallel = screen(
        [slab()],
        ADSORBATES,
        tmp_path / "run",
        calculator=FAENetCalculator("metals-s", frames="one"),
        settings=FAST,
        workers=2,
    )
    assert [row.key for row in parallel.rows] == [row.key for row in finished.rows]
    energies = [[row.adsorption_energy for row in one.rows] for one in (parallel, finished)]
    assert np.allclose(*energies, atol=1e-4)


def test_command_line(tmp_path):
    from ase.io import write

    write(tmp_path / "slab.traj", slab())
    arguments = ["screen", "-m", "metals-s", "--frames", "one", "--slab", str(tmp_path / "slab.traj"), "--width", "0"]
    arguments += ["--adsorbate", "H", "-o", str(tmp_path / "run"), "--fmax", "0.2"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "H from H2" in done.output
    assert CliRunner().invoke(main, arguments).exit_code == 2
    assert CliRunner().invoke(main, [*arguments, "--resume"]).exit_code == 0
    (tmp_path / "run" / "report.html").unlink()
    assert CliRunner().invoke(main, ["report", str(tmp_path / "run")]).exit_code == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert 'data-name="adsorption_energy">adsorption energy (eV)<' in page
    assert 'data-name="uncertainty">uncertainty (eV)<' in page
    assert CliRunner().invoke(main, ["screen", "--bulk", "Cu", "-o", str(tmp_path / "x")]).exit_code == 2


@pytest.mark.parametrize(
    "option",
    [
        *(f"--{name}={value}" for name in ("fmax", "vacuum", "thickness") for value in ("nan", "inf", "0", "-1")),
        *("--width=nan", "--width=-1", "--coverage=0", "--rotations=0", "--steps=-1", "--workers=0", "--threads=0"),
        *("--top=0", "--shard=0/2", "--shard=3/2", "--shard=nan/2", "--seed=-1"),
    ],
)
def test_command_line_refuses_numbers_out_of_range(option, tmp_path):
    from ase.io import write

    write(tmp_path / "slab.traj", slab())
    arguments = ["screen", "-m", "metals-s", "--slab", str(tmp_path / "slab.traj"), "--adsorbate", "H"]
    done = CliRunner().invoke(main, [*arguments, "-o", str(tmp_path / "run"), option])
    assert done.exit_code == 2, done.output
    assert option.split("=")[0] in done.output
    assert not (tmp_path / "run").exists()


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PROBE = """
<script>
const errors = [];
window.addEventListener("error", (event) => errors.push(event.message));
</script>
"""
QUESTIONS = """
<script>
setTimeout(() => {
  const column = Array.from(document.querySelectorAll("#results th")).findIndex(
    (head) => head.dataset.name === "adsorption_energy");
  const energies = () => Array.from(document.querySelectorAll("#results tbody tr")).map(
    (row) => Number(row.cells[column].dataset.value));
  const head = document.querySelectorAll("#results th")[column];
  head.click();
  const up = energies();
  head.click();
  const down = energies();
  document.getElementById("filter").value = "no such thing";
  document.getElementById("filter").oninput();
  const hidden = Array.from(document.querySelectorAll("#results tbody tr")).filter((row) => row.hidden).length;
  const canvas = document.querySelector("#viewer canvas");
  const image = document.createElement("canvas");
  image.width = canvas.width; image.height = canvas.height;
  viewer.render();
  const pixels = image.getContext("2d");
  pixels.drawImage(canvas, 0, 0);
  const data = pixels.getImageData(0, 0, image.width, image.height).data;
  let colored = 0;
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] > 0 && (data[i] < 250 || data[i + 1] < 250 || data[i + 2] < 250)) colored += 1;
  const requests = performance.getEntriesByType("resource").map((entry) => entry.name);
  const answer = {errors, up, down, hidden, colored, requests};
  const out = document.createElement("pre");
  out.id = "answer";
  out.textContent = JSON.stringify(answer);
  document.body.append(out);
}, 1500);
</script>
"""


def _ask_browser(page, folder):
    """Load a page headless with a probe inside and return what the probe saw."""
    text = page.read_text()
    probed = folder / "probed.html"
    probed.write_text(text.replace("<head>", "<head>" + PROBE).replace("</body>", QUESTIONS + "</body>"))
    flags = "--headless --no-sandbox --disable-gpu --use-gl=angle --use-angle=swiftshader --enable-unsafe-swiftshader"
    quiet = "--disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
    command = [CHROMIUM, *flags.split(), *quiet.split(), f"--user-data-dir={folder / 'profile'}"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=10000", "--dump-dom", probed.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    answer = dom.partition('<pre id="answer">')[2].partition("</pre>")[0]
    return json.loads(answer.replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
def test_report_works_in_a_browser(finished, tmp_path):
    found = _ask_browser(write_screening_report(finished.folder), tmp_path)
    assert found["errors"] == []
    assert [name for name in found["requests"] if not name.startswith("data:")] == []
    assert found["up"] == sorted(found["up"]) and found["down"] == found["up"][::-1]
    assert len(found["up"]) == len(finished.rows) == found["hidden"]
    assert found["colored"] > 1000


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
def test_the_browser_check_sees_a_broken_report(finished, tmp_path):
    page = write_screening_report(finished.folder)
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text().replace("rows.sort(", "undefinedFunction(); rows.sort("))
    assert _ask_browser(broken, tmp_path)["errors"]
