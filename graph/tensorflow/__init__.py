"""TensorFlow's file formats: reading and writing its graphs and checkpoints.

    import_graph_def, node_mapping       a GraphDef as a graph: which op each node is here
    control_flow_recovery                branches and loops of an imported graph
    export_graph_def                     a graph as a GraphDef
    written_forms, read_forms            nodes that differ from TensorFlow's: how they are written, and what such nodes are here
    loop_order, update_order             control edges of written graphs: iterations in order, reads before updates
    values, variable_def                 TensorProto, AttrValue and VariableDef
    signatures                           inputs, outputs and attributes of TensorFlow's ops (signatures.jsonl)
    protos                               protocol buffer classes, made at first use
    tensor_bundle, sstable, crc32c       checkpoints in format V2: the index is a LevelDB table

`protobuf` is loaded only when a message is made. graph/io, dovetail/interop and the data sets import this package.
"""
