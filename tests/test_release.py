"""Every place that names the version of a release names the same one."""

import re
from pathlib import Path

import tfp_sgmcmc as sgmcmc

ROOT = Path(__file__).resolve().parents[1]


def test_the_version_is_the_same_everywhere() -> None:
    patterns = {"CITATION.cff": r"^version: (\S+)$", "docs/cite.md": r"version = \{(\S+)\}"}
    for name, pattern in patterns.items():
        found = re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"), re.M)
        assert found == [sgmcmc.__version__], name
