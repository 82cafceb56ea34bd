"""The pgtypes room."""
