"""Core ML states turned into inputs and outputs, so that the rest of the executor sees only pure functions.

A state becomes an input `name` and an output `name_out`. A read is replaced by the value written last, so that only the
operations in between remain: for a KV cache one scatter from the input to the output, which then runs in place.
"""

from __future__ import annotations

from dataclasses import replace

from voxcpm_runtime.backends.portable.package import Argument, Operation, Program, TensorType

READ, WRITE = "read_state", "write_state"


def without_states(program: Program) -> Program:
    """The program with reads and writes resolved, and an `identity` that gives each state's last value its name."""
    now = {state.name: state.name for state in program.states}
    read: dict[str, str] = {}

    def resolved(argument: Argument) -> Argument:
        return read.get(argument, argument) if isinstance(argument, str) else argument

    operations = []
    for operation in program.operations:
        inputs = {name: tuple(map(resolved, arguments)) for name, arguments in operation.inputs.items()}
        if operation.kind == READ:
            read[operation.name] = now[_name(inputs["input"])]
        elif operation.kind == WRITE:
            now[_name(inputs["input"])] = _name(inputs["data"])
        else:
            operations.append(replace(operation, inputs=inputs))
    outputs = [replace(state, name=f"{state.name}_out") for state in program.states]
    for state, output in zip(program.states, outputs, strict=True):
        type_ = TensorType(state.dtype, state.fixed_shape or ())
        operations.append(Operation("identity", {"x": (now[state.name],)}, {}, ((output.name, type_),)))
    return replace(
        program,
        inputs=(*program.inputs, *program.states),
        outputs=(*program.outputs, *outputs),
        states=(),
        operations=tuple(operations),
    )


def _name(arguments: tuple[Argument, ...]) -> str:
    (argument,) = arguments
    if not isinstance(argument, str):
        raise TypeError("a state is read and written by its name")
    return argument
