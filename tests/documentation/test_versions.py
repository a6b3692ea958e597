"""The site of each version stays, and `latest` is the newest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / ".ci" / "docs.py"


def test_each_version_keeps_its_site_and_the_newest_is_the_latest(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0", "0.9.1", "0.9.0"):  # the last one anew
        site = tmp_path / "site"
        site.mkdir(exist_ok=True)
        (site / "index.html").write_text(f"the site of {version}")
        subprocess.run([sys.executable, SCRIPT, site, tmp_path / "pages", version], check=True)
    texts = {path.parent.name: path.read_text() for path in (tmp_path / "pages").glob("*/index.html")}
    assert texts == {
        "latest": "the site of 0.10.0",
        "0.10.0": "the site of 0.10.0",
        "0.9.1": "the site of 0.9.1",
        "0.9.0": "the site of 0.9.0",
    }
    links = re.findall('href="(.*?)/"', (tmp_path / "pages" / "index.html").read_text())
    assert links == ["latest", "0.10.0", "0.9.1", "0.9.0"]


def test_only_a_tag_publishes_a_site() -> None:
    text = (SCRIPT.parents[1] / ".github" / "workflows" / "docs.yml").read_text()
    assert 'tags: ["v*"]' in text and text.count("contents: write") == 1 and "secrets." not in text
    assert '.ci/docs.py site pages "${GITHUB_REF_NAME#v}"' in text and "-t published" in text
