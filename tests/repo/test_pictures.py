"""README and tour show every explorer, in pictures that are small and say what is in them."""

import re
import struct

import pytest

from clone import text_of
from make_pictures import FOLDER, MOST_BYTES, PICTURES, WIDTH


def test_readme_and_tour_show_every_explorer():
    text = text_of("README.md") + text_of("docs/using.md")
    shown = dict(re.findall(r"!\[([^\]]+)\]\((?:docs/)?img/(\w+)\.png\)", text))
    stored = {path.stem for path in FOLDER.glob("*.png")}
    assert set(shown.values()) == set(PICTURES) == stored
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
