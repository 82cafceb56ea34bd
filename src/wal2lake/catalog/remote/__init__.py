"""SQL about the columns of published tables, and about the changes to them."""
