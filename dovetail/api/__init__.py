"""The thin modules that programs use as `dt.math`, `dt.nn`, `dt.errors`: they export names of `graph` under public paths.

`ops` has one module per family of ops. `errors` has a class per status code. `nest` handles nested structures.
`unknown_names` knows what to use instead of a name that a module or a tensor does not have.
`dovetail/public_paths.py` maps the public paths to these modules. `data`, `distribute`, `train` and all above may import from here.
"""
