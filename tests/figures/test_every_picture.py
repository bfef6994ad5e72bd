"""Every figure draws what it drew when somebody last looked at it."""

import pytest

from pictures import PICTURES, changed, digests, known


def test_every_picture_is_known():
    assert list(known()) == list(PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_as_it_was(name):
    """Look at `python tests/pictures.py show`; if what is new is right, renew."""
    assert changed(known()[name], digests(PICTURES[name]())) == []
