"""A step model of several packages, each with some of its layers: a call runs them in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from voxcpm_constants.step_models import PASSED_ON, StepModel
from voxcpm_runtime.backends.step_function import Array, StepFunction, StepState


class StatesInTurn:
    """The state of each part, as one."""

    def __init__(self, declared: Sequence[StepModel], states: Sequence[StepState]) -> None:
        self._declared = declared
        self.states = states

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """Copies of positions start..stop of every KV cache (1, kv_heads, positions, head_dim), by tensor name."""
        return {name: array for state in self.states for name, array in state.rows(start, stop).items()}

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        """Overwrite positions from `start` on with arrays (1, kv_heads, positions, head_dim), by tensor name."""
        for declared, state in zip(self._declared, self.states, strict=True):
            state.set_rows(start, {t.name: rows[t.name] for t in declared.state if t.name in rows})


class PartsInTurn:
    """A step model whose parts (`voxcpm_constants.step_models.parts`) are loaded each by itself."""

    def __init__(self, declared: Sequence[StepModel], parts: Sequence[StepFunction]) -> None:
        self._declared = declared
        self._parts = parts

    def new_state(self) -> StatesInTurn:
        """The state at the start of a stream: zeros."""
        return StatesInTurn(self._declared, [part.new_state() for part in self._parts])

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """Run one step. Raises ValueError for wrong inputs, and for a missing state or one of another step model."""
        if not isinstance(state, StatesInTurn) or len(state.states) != len(self._parts):
            raise ValueError(f"{self._declared[0].name}: pass a state that this step model made")
        taken, outputs = self._declared[0].inputs[0].name, dict(inputs)
        for part, own in zip(self._parts, state.states, strict=True):
            outputs = part({**inputs, taken: outputs.get(PASSED_ON, inputs[taken])}, own)
        return outputs


def in_turn(declared: Sequence[StepModel], load: Callable[[StepModel], StepFunction]) -> StepFunction:
    """A step model of these parts; the only one itself."""
    parts = [load(part) for part in declared]
    return parts[0] if len(parts) == 1 else PartsInTurn(declared, parts)
