"""Package metadata: one version, complete extras, citation, and a workflow that runs what the Makefile runs."""

import configparser
import re

import pytest
from ruamel.yaml import YAML

import faenet_calc

NOT_IN_ALL = {"gpu", "all", "docs", "peers", "qm9", "test", "dev"}


@pytest.fixture(scope="module")
def setup_cfg(repository):
    parser = configparser.ConfigParser()
    parser.read(repository / "setup.cfg")
    return parser


def test_version_is_written_once(repository, setup_cfg):
    assert setup_cfg["metadata"]["version"] == "attr: faenet_calc.__version__"
    for name in ("pyproject.toml", "setup.py", "CITATION.cff"):
        assert faenet_calc.__version__ not in (repository / name).read_text()


def test_changelog_has_the_version_and_an_unreleased_part(repository):
    headings = re.findall(r"^## \[(.+?)\]", (repository / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert len(set(headings)) == len(headings)


def test_all_holds_every_extra_for_users(setup_cfg):
    extras = setup_cfg["options.extras_require"]
    held = re.fullmatch(r"faenet-calc\[(.+)\]", extras["all"].strip()).group(1).split(",")
    assert set(held) == set(extras) - NOT_IN_ALL


def test_citation(repository):
    citation = YAML(typ="safe").load(repository / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert citation["license"] == "MIT"
    paper = citation["references"][0]
    assert paper["year"] == 2023 and paper["authors"][0]["family-names"] == "Duval"


def test_workflow_runs_the_complete_check_on_every_supported_python(repository, setup_cfg):
    workflow = YAML(typ="safe").load(repository / ".github" / "workflows" / "ci.yml")
    job = workflow["jobs"]["check"]
    assert any(step.get("run") == ".ci/run" for step in job["steps"])
    supported = re.findall(r"Python :: (3\.\d+)", setup_cfg["metadata"]["classifiers"])
    assert job["strategy"]["matrix"]["python"] == supported
