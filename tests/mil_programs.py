"""Programs of coremltools' MIL builder."""

from typing import Any

from voxcpm_conversion.core_ml.toolchain import import_coremltools, silenced


def converted(build: Any, specs: dict[str, Any], target: str, **options: Any) -> Any:
    """The model of a function from MIL inputs to MIL outputs, in the precision of the inputs.

    specs: the builder's, by the inputs' names.
    """
    ct = import_coremltools()
    from coremltools.converters.mil import Builder

    version = getattr(ct.target, target)
    # The builder takes the input names from the function's signature.
    function = eval(f"lambda {', '.join(specs)}: build({', '.join(specs)})", {"build": build})  # noqa: S307
    program = Builder.program(input_specs=list(specs.values()), opset_version=version)(function)
    with silenced():
        return ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=version,
            compute_precision=ct.precision.FLOAT32,
            skip_model_load=True,
            **options,
        )
