"""The node as publisher, beside PostgreSQL as publisher, to the same subscriber."""
