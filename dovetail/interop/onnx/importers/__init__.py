"""The importers, by families of ops."""
