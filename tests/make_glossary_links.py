"""Let every entry of the glossary lead to the cell where its heading stands now: `python tests/make_glossary_links.py`.

Cells keep their ids (`nbstripout --keep-id`), so this is needed only where a heading went to
another cell.
"""

import json
import re

from pipelab.io.paths import notebooks_dir

_MET = re.compile(r"First met in \[\d\d (?P<heading>[^\]]+)\]\((?P<book>[^)#]+)#[^)]*\)")


def led(glossary: str) -> str:
    """The glossary's file with its links made again."""

    def link(found: re.Match) -> str:
        heading, book = json.loads(f'"{found["heading"]}"'), found["book"]
        cells = json.loads((notebooks_dir() / book).read_text(encoding="utf-8"))["cells"]
        place = re.compile(rf"^#{{1,3}} {re.escape(heading)}$", flags=re.M)
        cell = next(
            c["id"]
            for c in cells
            if c["cell_type"] == "markdown" and place.search("".join(c["source"]))
        )
        return f"{found[0].partition('#')[0]}#cell-id={cell})"

    return _MET.sub(link, glossary)


if __name__ == "__main__":
    path = notebooks_dir() / "glossary.ipynb"
    path.write_text(led(path.read_text(encoding="utf-8")), encoding="utf-8")
