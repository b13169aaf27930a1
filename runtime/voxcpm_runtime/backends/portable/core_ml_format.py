"""Apple's Core ML messages that a package is read with, from a copy of their descriptors.

`core_ml_format.binpb` is a FileDescriptorSet of coremltools 9.0's `Model.proto` and all that it imports (BSD-3-Clause,
Copyright Apple Inc., `core_ml_format.LICENSE.txt`), which a test compares with the installed coremltools. The messages
have a pool of their own: protobuf refuses a second definition of a name, and coremltools may be in the same process.
"""

from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

DESCRIPTORS = Path(__file__).with_name("core_ml_format.binpb")

_pool = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
    _pool.Add(_file)

Model = message_factory.GetMessageClass(_pool.FindMessageTypeByName("CoreML.Specification.Model"))
DATA_TYPES = {
    value.number: value.name
    for value in _pool.FindEnumTypeByName("CoreML.Specification.MILSpec.DataType").values
}
"""MIL's element types by their numbers."""
