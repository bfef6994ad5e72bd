"""README and tour show every explorer, in pictures that are small and say what is in them."""

import re
import struct

import pytest

from make_pictures import FOLDER, MOST_BYTES, PICTURES, WIDTH
from pipelab.files.bundled_folders import in_clone

pytestmark = pytest.mark.skipif(
    not in_clone(), reason="about the clone, and this is an installed package"
)


def test_readme_and_tour_show_every_explorer():
    root = FOLDER.parent.parent
    text = "".join(
        (root / page).read_text(encoding="utf-8") for page in ("README.md", "docs/using.md")
    )
    shown = dict(re.findall(r"!\[([^\]]+)\]\((?:docs/)?img/(\w+)\.png\)", text))
    assert (
        sorted(shown.values())
        == sorted(PICTURES)
        == sorted(path.stem for path in FOLDER.glob("*.png"))
    )
    assert all(shown)  # what is in it, for those who do not see it


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_and_whole(name):
    data = (FOLDER / f"{name}.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", data[16:24])
    assert 0.7 * WIDTH < width <= WIDTH
    assert height > 400
    assert len(data) < MOST_BYTES
