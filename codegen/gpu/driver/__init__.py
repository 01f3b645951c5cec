"""The device layer: GPUs as this process sees them. Memory, streams, launches, graphs, copies. Nothing here knows of nodes."""
