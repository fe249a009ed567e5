import csv
import importlib.util

import ase.data
import numpy as np
import pytest

from faenet_calc import elements
from faenet_calc.errors import InputError


@pytest.fixture(scope="module")
def generator(repository):
    spec = importlib.util.spec_from_file_location("generate_elements", repository / "scripts" / "generate_elements.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_shipped_table_is_what_mendeleev_gives(generator):
    shipped = elements._read("elements.csv")
    fresh = generator.element_rows()
    assert len(shipped) == len(fresh) == 118
    different = [
        (row["symbol"], key, row[key], value)
        for row, new in zip(shipped, fresh, strict=True)
        for key, value in new.items()
        if row[key] != value
    ]
    assert not different, f"(element, column, shipped, mendeleev): {different[:5]}; run scripts/generate_elements.py"
    assert generator.PROPERTIES == elements.PROPERTY_NAMES


def test_symbols_agree_with_ase():
    assert list(elements.symbols()) == ase.data.chemical_symbols
    assert elements.names()[29] == "Copper"


def test_masses_agree_with_ase():
    # Radioactive elements have conventional masses that differ by the isotope chosen.
    stable = [z for z in range(1, 84) if z not in (43, 61)]
    np.testing.assert_allclose(elements.masses()[stable], ase.data.atomic_masses[stable], rtol=1e-3)


def test_symbol_and_atomic_number_are_inverse():
    assert [elements.atomic_number(elements.symbol(z)) for z in range(1, 119)] == list(range(1, 119))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, r"; did you mean Cu\?$") for text in ("cu", "CU", "Cuu")),
        *((text, f"'{text}' is not an element$") for text in ("Xx", "X", "NaCl", "")),
    ],
)
def test_unknown_symbols_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        elements.atomic_number(text)


@pytest.mark.parametrize("z", [-1, 119])
def test_numbers_outside_the_table_are_refused(z):
    with pytest.raises(InputError, match="expected 1 to 118"):
        elements.symbol(z)


def test_periods_and_groups():
    expected = {"H": (1, 1), "He": (1, 18), "C": (2, 14), "Cu": (4, 11), "La": (6, 3), "Pt": (6, 10), "Og": (7, 18)}
    expected |= {"Ce": (6, 19), "Lu": (6, 19), "U": (7, 19)}
    for symbol, (period, group) in expected.items():
        z = elements.atomic_number(symbol)
        assert (elements.period()[z], elements.group()[z]) == (period, group), symbol
    f_block = np.flatnonzero(elements.group() == elements.F_BLOCK_GROUP)
    assert f_block.tolist() == [*range(58, 72), *range(90, 104)]
    for index in (elements.period(), elements.group()):
        assert index.shape == (119,) and index.dtype == np.int64 and index[0] == 0 and index[1:].min() == 1


def test_properties_are_standardised_and_missing_values_flagged():
    scaled, missing = elements.properties(), elements.properties_missing()
    assert scaled.shape == missing.shape == (119, len(elements.PROPERTY_NAMES))
    assert np.isfinite(scaled).all()
    assert missing[0].all() and (scaled[missing] == 0).all()
    known = np.ma.masked_array(scaled, missing)
    np.testing.assert_allclose(known.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(known.std(axis=0, ddof=1), 1, atol=1e-12)
    second_ionization = elements.PROPERTY_NAMES.index("ionization_energy_2")
    assert missing[1, second_ionization] and not missing[2, second_ionization]
    copper = dict(zip(elements.PROPERTY_NAMES, elements.raw_properties()[29], strict=True))
    assert copper["ionization_energy_1"] == pytest.approx(7.726, abs=1e-3)
    assert copper["density"] == pytest.approx(8.96, abs=0.1)


def test_arrays_cannot_be_changed():
    for array in (elements.properties(), elements.upstream_properties(), elements.group(), elements.masses()):
        with pytest.raises(ValueError, match="read-only"):
            array[1] = 0


def test_upstream_table_is_the_buffer_of_upstream_weights(golden_dir):
    with np.load(golden_dir / "default__slab.npz") as golden:
        prefix = "sd/embed_block.phys_emb."
        for name in ("properties", "group", "period"):
            ours, theirs = getattr(elements, f"upstream_{name}")(), golden[prefix + name]
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)


def test_upstream_table_follows_from_the_raw_values(golden_dir):
    with open(golden_dir / "phys_table_mendeleev_0.18_raw.csv") as file:
        rows = [row for row in csv.DictReader(file) if int(row["atomic_number"]) <= 85]
    raw = np.array([[float(row[name] or "nan") for name in elements.UPSTREAM_PROPERTY_NAMES] for row in rows])
    scaled = np.nan_to_num((raw - np.nanmean(raw, axis=0)) / np.nanstd(raw, axis=0, ddof=1), nan=0.0)
    np.testing.assert_allclose(elements.upstream_properties()[1:], scaled, atol=1e-6)
    assert (elements.upstream_properties()[0] == 0).all()
    biased = np.nan_to_num((raw - np.nanmean(raw, axis=0)) / np.nanstd(raw, axis=0, ddof=0), nan=0.0)
    assert np.abs(elements.upstream_properties()[1:] - biased).max() > 1e-3, "the comparison must see ddof"
