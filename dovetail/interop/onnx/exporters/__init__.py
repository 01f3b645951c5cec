"""The exporters, by families of ops."""
