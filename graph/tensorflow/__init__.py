"""TensorFlow's graphs: import and export of GraphDefs.

    import_graph_def, node_mapping   adds a GraphDef's nodes to a graph, and chooses the op of each node
    export_graph_def                 writes a graph as a GraphDef
    written_forms, read_forms        ops that differ from TensorFlow's: how they are written and read
    loop_order, update_order         control edges of written graphs: iterations in order, and reads before updates
    variable_def                     TensorFlow's VariableDef
    signatures                       inputs, outputs and attributes of TensorFlow's ops (signatures.jsonl)

`protobuf` is loaded when the first message is made. `graph/formats` has the messages and TensorFlow's checkpoints.
"""
