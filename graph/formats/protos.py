"""TensorFlow's protocol buffers. The package `protobuf` makes their classes at first use.

`GRAPHS` has the messages of graphs, saved models and checkpoints, `EXAMPLES` those of record files with training data. A field is a
line such as `repeated NodeDef node = 1`, as in a `.proto` file. The keys of a `map` are strings. Fields that Dovetail does not use are
omitted. They are preserved as unknown fields.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from ..core import dtypes
from ..core.errors import UnimplementedError
from ..core.hooks import hooks

ENUM_NAMES = {"bool": "BOOL", "float16": "HALF", "float32": "FLOAT", "float64": "DOUBLE"}
"""Element type -> its name in TensorFlow's enum, if that differs."""
ENUMS: dict[str, dict[str, int]] = {
    "DataType": {"DT_INVALID": 0}
    | {
        f"DT_{ENUM_NAMES.get(t.name.removesuffix('_ref'), t.name.removesuffix('_ref').upper())}{'_REF' * t.is_ref}": t.enum
        for base in dtypes.ALL
        for t in (base, base.ref)
    }
    | {"DT_QINT8": 11, "DT_QUINT8": 12, "DT_QINT32": 13, "DT_QINT16": 15, "DT_QUINT16": 16},
    "VariableSynchronization": {f"VARIABLE_SYNCHRONIZATION_{w}": i for i, w in enumerate(("AUTO", "NONE", "ON_WRITE", "ON_READ"))},
    "VariableAggregation": {
        f"VARIABLE_AGGREGATION_{w}": i for i, w in enumerate(("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"))
    },
    "CheckpointFormatVersion": {"LEGACY": 0, "V1": 1, "V2": 2},
}  # fmt: skip
_GRAPHS: dict[str, tuple[str, ...]] = {
    "TensorShapeProto": ("repeated TensorShapeProto.Dim dim = 2", "bool unknown_rank = 3"),
    "TensorShapeProto.Dim": ("int64 size = 1", "string name = 2"),
    "TensorProto": (
        "DataType dtype = 1", "TensorShapeProto tensor_shape = 2", "int32 version_number = 3", "bytes tensor_content = 4",
        "repeated float float_val = 5", "repeated double double_val = 6", "repeated int32 int_val = 7",
        "repeated bytes string_val = 8", "repeated float scomplex_val = 9", "repeated int64 int64_val = 10",
        "repeated bool bool_val = 11", "repeated double dcomplex_val = 12", "repeated int32 half_val = 13",
        "repeated uint32 uint32_val = 16", "repeated uint64 uint64_val = 17", "bytes float8_val = 18",
    ),
    "NameAttrList": ("string name = 1", "map AttrValue attr = 2"),
    "AttrValue": (
        "oneof AttrValue.ListValue list = 1", "oneof bytes s = 2", "oneof int64 i = 3", "oneof float f = 4", "oneof bool b = 5",
        "oneof DataType type = 6", "oneof TensorShapeProto shape = 7", "oneof TensorProto tensor = 8", "oneof string placeholder = 9",
        "oneof NameAttrList func = 10",
    ),
    "AttrValue.ListValue": (
        "repeated bytes s = 2", "repeated int64 i = 3", "repeated float f = 4", "repeated bool b = 5", "repeated DataType type = 6",
        "repeated TensorShapeProto shape = 7", "repeated TensorProto tensor = 8", "repeated NameAttrList func = 9",
    ),
    "NodeDef": (
        "string name = 1", "string op = 2", "repeated string input = 3", "string device = 4", "map AttrValue attr = 5",
    ),
    "VersionDef": ("int32 producer = 1", "int32 min_consumer = 2", "repeated int32 bad_consumers = 3"),
    "FunctionDef": ("repeated NodeDef node_def = 3", "map string ret = 4", "map AttrValue attr = 5"),
    "FunctionDefLibrary": ("repeated FunctionDef function = 1",),
    "GraphDef": (
        "repeated NodeDef node = 1", "FunctionDefLibrary library = 2", "int32 version = 3", "VersionDef versions = 4",
    ),
}  # fmt: skip
_MODELS: dict[str, tuple[str, ...]] = {
    "SaverDef": (
        "string filename_tensor_name = 1", "string save_tensor_name = 2", "string restore_op_name = 3", "int32 max_to_keep = 4",
        "bool sharded = 5", "float keep_checkpoint_every_n_hours = 6", "CheckpointFormatVersion version = 7",
    ),
    "CollectionDef": (
        "oneof CollectionDef.NodeList node_list = 1", "oneof CollectionDef.BytesList bytes_list = 2",
        "oneof CollectionDef.Int64List int64_list = 3", "oneof CollectionDef.FloatList float_list = 4",
        "oneof CollectionDef.AnyList any_list = 5",
    ),
    "CollectionDef.NodeList": ("repeated string value = 1",),
    "CollectionDef.BytesList": ("repeated bytes value = 1",),
    "CollectionDef.Int64List": ("repeated int64 value = 1",),
    "CollectionDef.FloatList": ("repeated float value = 1",),
    "CollectionDef.AnyList": ("repeated .google.protobuf.Any value = 1",),
    "TensorInfo": ("string name = 1", "DataType dtype = 2", "TensorShapeProto tensor_shape = 3"),
    "SignatureDef": ("map TensorInfo inputs = 1", "map TensorInfo outputs = 2", "string method_name = 3"),
    "AssetFileDef": ("TensorInfo tensor_info = 1", "string filename = 2"),
    "MetaGraphDef": (
        "MetaGraphDef.MetaInfoDef meta_info_def = 1", "GraphDef graph_def = 2", "SaverDef saver_def = 3",
        "map CollectionDef collection_def = 4",
        "map SignatureDef signature_def = 5", "repeated AssetFileDef asset_file_def = 6",
    ),
    "MetaGraphDef.MetaInfoDef": (
        "string meta_graph_version = 1", "repeated string tags = 4", "string tensorflow_version = 5",
        "string tensorflow_git_version = 6", "bool stripped_default_attrs = 7",
    ),
    "SavedModel": ("int64 saved_model_schema_version = 1", "repeated MetaGraphDef meta_graphs = 2"),
    "SaveSliceInfoDef": (
        "string full_name = 1", "repeated int64 full_shape = 2", "repeated int64 var_offset = 3", "repeated int64 var_shape = 4",
    ),
    "VariableDef": (
        "string variable_name = 1", "string initializer_name = 2", "string snapshot_name = 3",
        "SaveSliceInfoDef save_slice_info_def = 4", "bool is_resource = 5", "string initial_value_name = 6", "bool trainable = 7",
        "VariableSynchronization synchronization = 8", "VariableAggregation aggregation = 9",
    ),
}  # fmt: skip
_CHECKPOINTS: dict[str, tuple[str, ...]] = {
    "BundleHeaderProto": ("int32 num_shards = 1", "int32 endianness = 2", "VersionDef version = 3"),
    "TensorSliceProto": ("repeated TensorSliceProto.Extent extent = 1",),
    "TensorSliceProto.Extent": ("int64 start = 1", "oneof int64 length = 2"),
    "BundleEntryProto": (
        "DataType dtype = 1", "TensorShapeProto shape = 2", "int32 shard_id = 3", "int64 offset = 4", "int64 size = 5",
        "fixed32 crc32c = 6", "repeated TensorSliceProto slices = 7",
    ),
}  # fmt: skip
GRAPHS = _GRAPHS | _MODELS | _CHECKPOINTS


EXAMPLES: dict[str, tuple[str, ...]] = {
    "BytesList": ("repeated bytes value = 1",),
    "FloatList": ("repeated float value = 1",),
    "Int64List": ("repeated int64 value = 1",),
    "Feature": ("oneof BytesList bytes_list = 1", "oneof FloatList float_list = 2", "oneof Int64List int64_list = 3"),
    "Features": ("map Feature feature = 1",),
    "Example": ("Features features = 1",),
    "FeatureList": ("repeated Feature feature = 1",),
    "FeatureLists": ("map FeatureList feature_list = 1",),
    "SequenceExample": ("Features context = 1", "FeatureLists feature_lists = 2"),
}


PACKAGE = "tensorflow"  # text forms and `Any` contain it
MESSAGES = EXAMPLES | GRAPHS
_FIELD = re.compile(r"(repeated |map |oneof )?([\w.]+) (\w+) = (\d+)")
_PLAIN = ("bytes", "string", "float", "double", "bool", "int32", "int64", "uint32", "uint64", "fixed32")


@functools.cache
def message(name: str) -> Any:
    """The class of a message, such as `GraphDef` or the nested `AttrValue.ListValue`.

    Raises:
        UnimplementedError: the package `protobuf` is not installed.
    """
    try:
        from google.protobuf import descriptor_pool, message_factory
    except ImportError:
        raise UnimplementedError.of(
            f"{name} is a protocol buffer of TensorFlow's: pip install 'dovetail[records]'"
        ) from None
    return message_factory.GetMessageClass(_pool(descriptor_pool).FindMessageTypeByName(f"{PACKAGE}.{name}"))


@functools.cache
def _pool(descriptor_pool: Any) -> Any:
    """A separate pool, because the process may have loaded TensorFlow's classes of the same names."""
    from google.protobuf import any_pb2, descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="dovetail/messages.proto", package=PACKAGE, syntax="proto3")
    file.dependency.append(any_pb2.DESCRIPTOR.name)
    for name, numbers in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for title, number in numbers.items():
            enum.value.add(name=title, number=number)
    described: dict[str, Any] = {}
    for name, fields in MESSAGES.items():
        outer, _, inner = name.rpartition(".")
        described[name] = (described[outer].nested_type if outer else file.message_type).add(name=inner)
        for line in fields:
            _add_field(described[name], name, line)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _add_field(described: Any, name: str, line: str) -> None:
    found = _FIELD.fullmatch(line)
    if found is None:
        raise ValueError(f"{name}: {line!r} is not a field")
    label, kind, title, number = found.groups()
    field = described.field.add(name=title, number=int(number))
    field.label = field.LABEL_REPEATED if label in ("repeated ", "map ") else field.LABEL_OPTIONAL
    if label == "oneof ":
        if not described.oneof_decl:
            described.oneof_decl.add(name="kind" if name in ("Feature", "CollectionDef") else "value")
        field.oneof_index = 0
    if label != "map ":
        _set_kind(field, kind)
        return
    entry = "".join(part.capitalize() for part in title.split("_")) + "Entry"
    _set_kind(field, f"{name}.{entry}")
    pair = described.nested_type.add(name=entry)
    pair.options.map_entry = True
    for at, (half, of) in enumerate((("key", "string"), ("value", kind)), 1):
        _set_kind(pair.field.add(name=half, number=at, label=field.LABEL_OPTIONAL), of)


def _set_kind(field: Any, kind: str) -> None:
    if kind in _PLAIN:
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    else:
        field.type = field.TYPE_ENUM if kind in ENUMS else field.TYPE_MESSAGE
        field.type_name = kind if kind.startswith(".") else f".{PACKAGE}.{kind}"


hooks.message = message
