"""Classes of protobuf messages that are described in code instead of being generated: neither building nor installing needs ``protoc``.

Promises: each call has a descriptor pool of its own, so descriptions do not collide with others of the same messages in the process.
Leaves out: what the fields mean; the modules that describe messages know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

__all__ = ["DecodeError", "Described", "message_classes"]

Described = Mapping[str, tuple[tuple[int, str, str, str], ...]]
"""Message -> its fields (number, label, type, name). A type that begins with a capital is another message."""

_PACKAGE: Final = "chunkstore.pulsar"
_LABELS: Final = {
    "required": FieldDescriptorProto.LABEL_REQUIRED,
    "optional": FieldDescriptorProto.LABEL_OPTIONAL,
    "repeated": FieldDescriptorProto.LABEL_REPEATED,
}
_SCALARS: Final = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "string": FieldDescriptorProto.TYPE_STRING,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
}


def message_classes(messages: Described, file: str) -> dict[str, Any]:
    """Message -> its class, of proto2. ``file`` names the description in errors of protobuf."""
    described_file = FileDescriptorProto(name=file, package=_PACKAGE, syntax="proto2")
    for message, described_fields in messages.items():
        described = DescriptorProto(name=message)
        for number, label, kind, name in described_fields:
            field = described.field.add(name=name, number=number, label=_LABELS[label])
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type = FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
        described_file.message_type.append(described)
    pool = DescriptorPool()
    pool.Add(described_file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in messages}
