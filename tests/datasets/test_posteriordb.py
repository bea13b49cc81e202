"""posteriordb: data and draws in archives, moments in files, and their agreement."""

import hashlib
import io
import json
import zipfile

import numpy as np
import pytest

import datasets
from datasets import posteriordb
from datasets._fetch import Source, registered

NOWHERE = "http://127.0.0.1:9/file.json.zip"
DRAWS = [{"mu": [1.0, 2.0], "beta[1]": [0.0, 4.0]}, {"mu": [3.0, 4.0], "beta[1]": [4.0, 8.0]}]


@pytest.fixture
def put(folders, monkeypatch):
    """Puts an archive of one file into the named folder, and registers it."""
    known = {}
    monkeypatch.setattr(posteriordb, "registered", lambda name: known[name])

    def put(name, content):
        text = json.dumps(content).encode()
        known[name] = Source(name, NOWHERE, hashlib.sha256(text).hexdigest())
        path = (folders.named / name).with_suffix(".zip")
        path.parent.mkdir(parents=True, exist_ok=True)
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as files:
            files.writestr(path.with_suffix(".json").name, text)
        path.write_bytes(archive.getvalue())
        return path

    return put


def test_data_are_arrays_with_the_types_of_stan(put):
    put("posteriordb/data/schools.json", {"J": 2, "y": [28, 8], "sigma": [15.0, 10.5]})
    found = datasets.posteriordb_data("schools")
    assert found["J"] == 2 and found["y"].dtype == np.int64 and found["sigma"].dtype == np.float64


def test_damaged_data_are_refused(put):
    path = put("posteriordb/data/schools.json", {"J": 2})
    put("posteriordb/data/other.json", {"J": 3})
    with zipfile.ZipFile(path, "w") as files:
        files.writestr("schools.json", b'{"J": 3}')
    with pytest.raises(ValueError, match="must have the sha256"):
        datasets.posteriordb_data("schools")


def test_moments_are_read_or_computed_from_draws(put, folders):
    put("posteriordb/draws/schools-normal.json", DRAWS)
    found = datasets.posteriordb_reference("schools-normal")
    assert found.names == ("mu", "beta[1]") and found.num_draws == 4
    np.testing.assert_allclose(found.mean, [2.5, 4.0])
    np.testing.assert_allclose(found.deviation, [(5 / 3) ** 0.5, (32 / 3) ** 0.5])
    np.testing.assert_allclose(found.quantiles[1], [2.5, 4.0])
    path = folders.named / "posteriordb/moments/schools-normal.json"
    path.parent.mkdir()
    quantiles = {"0.05": [1, 2], "0.5": [3, 4], "0.95": [5, 6]}
    text = {"names": ["mu", "tau"], "num_draws": 9, "mean": [7, 8], "sd": [1, 2]}
    path.write_text(json.dumps({**text, "quantiles": quantiles}))
    found = datasets.posteriordb_reference("schools-normal")
    assert found.names == ("mu", "tau") and found.num_draws == 9
    np.testing.assert_array_equal(found.quantiles, [[1, 2], [3, 4], [5, 6]])


def test_upstream_addresses_are_those_of_one_commit():
    for name in ("data/garch", "draws/garch-garch11"):
        source = registered(f"posteriordb/{name}.json")
        assert source.url.endswith(f"{name}.json.zip")
        assert "28f8d3d6e975315f42aa274a8399f21e07a43b30" in source.url and source.sha256
