import math

import numpy as np
import pytest

from voxcpm_validation.measures import agreement


def test_measures_equal_numpy_and_a_hand_computed_ratio():
    reference, x = np.array([3.0, -4.0, 0.0]), np.linspace(-1, 1, 50, dtype=np.float32)
    values = reference + np.array([0.0, 0.0, 0.5])
    found = agreement(values, reference)
    assert found.correlation == pytest.approx(np.corrcoef(values, reference)[0, 1], abs=1e-12)
    assert found.max_abs_error == 0.5
    assert found.snr_db == pytest.approx(20.0)  # 25 / 0.25 in power
    # A scaled copy correlates, but has noise.
    assert agreement(1.1 * reference, reference).snr_db == pytest.approx(20.0)
    found = agreement(x, x)
    assert (found.correlation, found.max_abs_error, found.snr_db, found.finite) == (1.0, 0.0, math.inf, True)
    assert agreement(np.ones(4), np.ones(4)).correlation == 1.0
    assert agreement(np.ones(4), np.arange(4.0)).correlation == 0.0
    for bad in (np.nan, np.inf):
        found = agreement(np.array([1.0, bad]), np.array([1.0, 2.0]))
        assert (found.finite, found.correlation) == (False, 0.0)
    with pytest.raises(ValueError, match="expected shape"):
        agreement(np.ones(3), np.ones(4))
