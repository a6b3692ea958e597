"""Put a built site beside the sites of other versions: `python .ci/docs.py SITE PAGES VERSION`.

PAGES is what is served: a folder for each version, `latest` with the newest one again, and an index of them all.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from packaging.version import Version

_INDEX = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>hookcli: documentation of all versions</title>
<h1>hookcli</h1>
<ul>
{items}
</ul>
</html>
"""


def publish(site: Path, pages: Path, version: Version) -> None:
    """Copy the site of a version, over one of the same version."""
    replace(site, pages / str(version))
    versions = sorted((Version(one.name) for one in pages.iterdir() if one.name[:1].isdigit()), reverse=True)
    if version == versions[0]:
        replace(site, pages / "latest")
    names = ["latest", *map(str, versions)]
    items = "\n".join(f'<li><a href="{name}/">{name}</a></li>' for name in names)
    (pages / "index.html").write_text(_INDEX.format(items=items))
    (pages / ".nojekyll").touch()  # GitHub's pages leave out folders such as _static otherwise


def replace(source: Path, target: Path) -> None:
    """Copy a folder to a place where an older one may be."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


if __name__ == "__main__":
    publish(Path(sys.argv[1]), Path(sys.argv[2]), Version(sys.argv[3]))
