"""Native regions: runs of a program's calls that become one call of compiled code.

`formation` is the pass that finds them, `region` is one at run time. The pipeline and `codegen.explain` import this package.
"""
