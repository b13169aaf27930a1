"""What Ray raises where its cluster does not start is one line."""

from __future__ import annotations

import pytest

from voxcpm_runtime import InputError


def test_a_node_that_does_not_start_in_time_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="needs the extra ray: make test-ray", exc_type=ImportError)
    from voxcpm_server.cluster import cluster

    def slow(**_: object) -> None:
        # Ray's own words, and its own type.
        raise Exception("The current node timed out during startup.")  # noqa: TRY002

    monkeypatch.setattr(ray, "init", slow)
    with (
        pytest.raises(InputError, match=r"^Ray at local: cannot be reached \(The current node timed out"),
        cluster("local"),
    ):
        pass
