"""What readers see, and what it cost: the SQL of published states and of coercions.

Takes: transactions of the store. Gives: vectors, the floor, totals. Owns: how far the floor may
go, and that each coercion is counted once. Never: begins or ends a transaction.
"""
