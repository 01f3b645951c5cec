"""The modules that programs use as `dt.math`, `dt.nn` and `dt.errors`. Most of them only re-export names of `graph`.

`ops` has one module per family of ops. `errors` has one class per status code. `nest` handles nested structures. `unknown_names` maps
names of other libraries to the names to use in Dovetail. `dovetail/public_paths.py` maps the public paths to these modules.
`data`, `distribute`, `train` and the packages above them may import from here.
"""
