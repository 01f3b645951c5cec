"""Single names of TensorFlow 1 that the core face does not show.

`table` finds a name when a program uses it: those of `dt` are in `top_level`, those of `dt.train` in `train`. `functions`, `switches`,
`variables`, `gradients` and `control_flow` define some of them; `dtypes` and `random` give others;
`bitwise`, `manip`, `config`, `compat` and `v1` are the public modules of these names. `inner_modules` says where
the names of TensorFlow's inner modules are. `contrib`, `importing` and the command `dovetail` import this package.
"""
