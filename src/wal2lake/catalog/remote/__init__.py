"""What is known of the columns of published tables, and what became of changes to them."""
