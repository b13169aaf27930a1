"""The copy of Core ML's descriptors; run as a script, this file generates it from coremltools."""

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from voxcpm_runtime.backends.portable.core_ml_format import DESCRIPTORS


def descriptors():
    """The installed coremltools' `Model.proto` and its imports, in dependency order."""
    from coremltools.proto import Model_pb2

    found: dict[str, object] = {}

    def add(file):
        for imported in file.dependencies:
            add(imported)
        found[file.name] = file

    add(Model_pb2.DESCRIPTOR)
    copied = FileDescriptorSet()
    for file in found.values():
        file.CopyToProto(copied.file.add())
    return copied.SerializeToString(deterministic=True)


def test_copy_equals_coremltools():
    assert DESCRIPTORS.read_bytes() == descriptors()


if __name__ == "__main__":
    DESCRIPTORS.write_bytes(descriptors())
