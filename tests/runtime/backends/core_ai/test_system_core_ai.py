"""The system's Core AI runtime loads a program itself; nothing is compiled here."""

from types import SimpleNamespace

from voxcpm_runtime.backends.core_ai import step_model as core_ai


def test_the_systems_runtime_loads_a_program_for_the_gpu(tmp_path, monkeypatch):
    program, asked = tmp_path / "feat_encoder.aimodel", []

    async def load(path, options):
        asked.append((path, options))
        return SimpleNamespace(function_names=["main"])

    # Any other way to create options raises AttributeError.
    options = SimpleNamespace(is_supported=lambda: True, from_preferred_compute_unit_kind="prefer {}".format)
    runtime = SimpleNamespace(
        AIModel=SimpleNamespace(load=load),
        SpecializationOptions=options,
        ComputeUnitKind=SimpleNamespace(gpu=lambda: "gpu"),
    )
    monkeypatch.setattr(core_ai, "_runtime", lambda: runtime)
    function = SimpleNamespace(package=program, name="main")

    core_ai._load_program([function], "0" * 64)

    assert asked == [(program, "prefer gpu")]
    assert not (tmp_path / "cache").exists()
