"""Native regions: runs of a program's calls that become one call of compiled code.

    formation  the pass: which calls form a region, and which instructions move before or after it
    region     a region at run time: call by call at first, then by a plan for its shapes; and the memory that it will need

The pipeline and the report of kernels (`codegen.explain`) import this package.
"""
