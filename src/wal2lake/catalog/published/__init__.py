"""SQL of published states, and of the coercions and conflicts that came with them.

Takes: transactions of the store. Gives: vectors, the floor, totals. Owns: how far the floor may
go, and that each coercion is counted once. Never: begins or ends a transaction.
"""
