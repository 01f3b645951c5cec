"""The ops, one file per family. Each op is one `define(...)` beside the public function that adds it to a graph."""
