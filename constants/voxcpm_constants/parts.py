"""The parts of a step model with several packages: a base LM whose weights are too large for one.

Each part has some of the layers and their caches. The first one takes the embeddings, each other one the previous
part's hidden states, under the same name; the last one returns the outputs of the step model.
"""

from __future__ import annotations

from voxcpm_constants.step_models import BASE_LM_STEP, StepModel, StepSizes, TensorSpec

PASSED_ON = "hidden_states"
"""The output of each part except the last: the `embeddings` of the next one."""
_CACHES_OF_A_LAYER = 2


def parts(model: StepModel, sizes: StepSizes) -> tuple[StepModel, ...]:
    """The step models that run one after the other as `model`, each in its own package; usually `model` alone."""
    count = sizes.base_lm_parts if model.name == BASE_LM_STEP else 1
    if count == 1:
        return (model,)
    embeddings, total = model.inputs[0], len(model.state) // _CACHES_OF_A_LAYER
    passed_on = TensorSpec(name=PASSED_ON, shape=embeddings.shape, meaning="after this part's layers")
    bounds = [index * total // count * _CACHES_OF_A_LAYER for index in range(count + 1)]
    return tuple(
        model.model_copy(
            update={
                "name": f"{model.name}_{index + 1}",
                "outputs": model.outputs if index + 1 == count else (passed_on,),
                "state": model.state[bounds[index] : bounds[index + 1]],
            }
        )
        for index in range(count)
    )


def layers(model: StepModel) -> range:
    """The layers of a language model, or of a part of it, by the caches in its state."""
    first = int(model.state[0].name.rpartition("_")[2])
    return range(first, first + len(model.state) // _CACHES_OF_A_LAYER)
