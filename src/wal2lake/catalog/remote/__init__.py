"""SQL about the columns of published tables, and about changes to them."""
