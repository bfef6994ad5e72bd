"""The band of a ratio: an error that all types have changes nothing."""

import numpy as np
import pandas as pd
import pytest

from pipelab.hardware import relative_bands


@pytest.mark.parametrize("seed", range(20))
def test_an_error_that_all_types_have_cancels(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    fitted, errors = rng.normal(0, 0.1, 76), rng.normal(0, 0.1, 60)
    group = {"phase": "decode", "layout": "one GPU", "engine": None, "experts": False}
    table = pd.DataFrame({"gpu_type": rng.choice(list("ABC"), 60), **group})

    def shares(factor):
        off = (1 + fitted) * factor - 1, table.assign(error=(1 + errors) * factor - 1)
        fit = relative_bands.ConstantsFit
        monkeypatch.setattr(fit, "errors_from_others", lambda self, types: off[0])
        monkeypatch.setattr(relative_bands, "published_errors", lambda costs: off[1])
        relative_bands.relative_errors.cache_clear()
        return [relative_bands.relative_band(name).share for name in ("A", "L4", "none")]

    assert shares(rng.uniform(0.5, 2)) == pytest.approx(shares(1.0))
    relative_bands.relative_errors.cache_clear()
