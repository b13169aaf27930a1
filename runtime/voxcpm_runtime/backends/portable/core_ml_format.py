"""Apple's protobuf messages for reading a Core ML package, from a copy of their descriptors.

`core_ml_format.binpb` is a FileDescriptorSet of coremltools 9.0's `Model.proto` and its imports (BSD-3-Clause,
Copyright Apple Inc., `core_ml_format.LICENSE.txt`); a test compares it with the installed coremltools. The messages
have their own pool: protobuf rejects duplicate names, and coremltools may be in the same process.
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
"""Number -> name of MIL's element types."""
