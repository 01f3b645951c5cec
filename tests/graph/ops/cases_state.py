"""Ops that change state have tests of their own instead of rows: what they do shows over several steps."""

from __future__ import annotations

from itertools import product

CASES: list[object] = []

_RULES = (
    *("GradientDescent", "Momentum", "KerasMomentum", "Adagrad", "Adam", "AdamW", "Lamb", "RMSProp", "CenteredRMSProp"),
    *("Adadelta", "Ftrl", "FtrlV2", "DualAveraging", "ProximalGradientDescent", "ProximalAdagrad"),
)
_SCATTERS = ("Add", "Div", "Max", "Min", "Mul", "Sub", "Update")

_IN_STATE_OPS = (
    *("Assign", "AssignAdd", "AssignSub", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"),
    *("VariableV2", "VarHandleOp", "ReadVariableOp", "IsVariableInitialized", "VarIsInitializedOp"),
    *("UninitializedNames", "CountUpTo", "ResourceGather"),
    *(f"{place}Scatter{kind}" for place, kind in product(("", "Resource"), _SCATTERS)),
)
_IN_TRAINING_OPS = tuple(
    f"{place}{rows}Apply{rule}" for place, rows, rule in product(("", "Resource"), ("", "Sparse"), _RULES)
)
_IN_QUEUE_OPS = (
    *(f"{kind}QueueV2" for kind in ("FIFO", "RandomShuffle", "PaddingFIFO", "Priority")),
    *(
        f"Queue{what}V2"
        for what in ("Enqueue", "EnqueueMany", "Dequeue", "DequeueMany", "DequeueUpTo", "Close", "Size")
    ),
    *("QueueIsClosedV2", "SelectHandle"),
)
_IN_ACCUMULATOR_OPS = (
    *("ResourceConditionalAccumulator", "SparseConditionalAccumulator"),
    *(f"ResourceAccumulator{what}" for what in ("ApplyGradient", "TakeGradient", "SetGlobalStep", "NumAccumulated")),
    *("SparseAccumulatorApplyGradient", "SparseAccumulatorTakeGradient", "QueueDequeueCounted"),
)

# Each with the reason: the file beside this one that tests it, or why nothing can.
EXEMPT = {
    **dict.fromkeys(_IN_STATE_OPS, "graph/ops/state/test_state_ops.py"),
    **dict.fromkeys(_IN_TRAINING_OPS, "graph/ops/state/test_training_ops.py"),
    **dict.fromkeys(_IN_QUEUE_OPS, "graph/ops/state/test_queue_ops.py"),
    **dict.fromkeys(_IN_ACCUMULATOR_OPS, "graph/resources/test_accumulators.py"),
    **dict.fromkeys(("EncodeSparse", "DecodeSparse"), "dovetail/compat/tf1/queues/test_input.py"),
    **dict.fromkeys(
        ("ReadTogether", "SaveV2", "MergeV2Checkpoints", "RestoreV2"), "dovetail/train/saving/test_saver.py"
    ),
    **dict.fromkeys(
        ("Barrier", *(f"Barrier{w}" for w in ("InsertMany", "TakeMany", "Close", "ReadySize", "IncompleteSize"))),
        "dovetail/compat/tf1/ops/test_barriers.py",
    ),
    **dict.fromkeys(
        ("ScalarSummary", "HistogramSummary", "ImageSummary", "MergeSummary", "TensorSummaryV2"),
        "dovetail/interop/tensorboard/test_summary.py",
    ),
    **dict.fromkeys(
        (
            "ParseExampleV2",
            "ParseSequenceExampleV2",
            "DecodeJSONExample",
            "ParseTensor",
            "SerializeTensor",
            "DecodeRaw",
        ),
        "dovetail/io/test_parsing.py",
    ),
    **dict.fromkeys(("SetOperation", "SetSize"), "dovetail/compat/tf1/ops/test_sets.py"),
    **dict.fromkeys(("PrintV2", "StringFormat"), "graph/ops/strings/test_printing.py"),
    **dict.fromkeys(("VocabularyIndex", "CrossHashed"), "dovetail/compat/tf1/feature_column/test_columns.py"),
    **dict.fromkeys(("IteratorGetNext", "IteratorGetNextByHandle", "InClient"), "dovetail/data/test_data.py"),
    "DatasetToSingleElement": "dovetail/data/test_functions.py",
    "IteratorPipeline": "dovetail/data/test_on_workers.py",
    "IteratorGive": "dovetail/data/test_given.py",
    **dict.fromkeys(
        (
            "HashTableV2",
            "InitializeTableFromTextFileV2",
            "LookupTableExportV2",
            "LookupTableFindV2",
            "LookupTableImportV2",
            "LookupTableInsertV2",
            "LookupTableRemoveV2",
            "LookupTableSizeV2",
            "MutableDenseHashTableV2",
        ),
        "dovetail/api/ops/test_lookup.py",
    ),
    **dict.fromkeys(
        (
            "AsString",
            "DecodeBase64",
            "EncodeBase64",
            "ReduceJoin",
            "RegexFullMatch",
            "RegexReplace",
            "StringJoin",
            "StringLength",
            "StringLower",
            "StringSplit",
            "StringStrip",
            "StaticRegexFullMatch",
            "StaticRegexReplace",
            "StringToHashBucket",
            "StringToHashBucketFast",
            "StringToHashBucketStrong",
            "StringToNumber",
            "StringUpper",
            "Substr",
        ),
        "graph/ops/strings/test_strings.py",
    ),
    **dict.fromkeys(
        (
            "DecodeCSV",
            "MatchingFiles",
            "ReadFile",
            "ReaderNumRecordsProducedV2",
            "ReaderNumWorkUnitsCompletedV2",
            "ReaderReadUpToV2",
            "ReaderReadV2",
            "ReaderResetV2",
            "ReaderV2",
            "WriteFile",
        ),
        "dovetail/compat/tf1/queues/test_readers.py",
    ),
    "InitializedValue": "graph/variables/test_variables.py",
    "Placeholder": "it has no kernel: its value is fed, which every row does",
}
