"""SQL on published states, and on the coercions and conflicts that came with them.

Takes: transactions of the store. Gives: vectors, the floor, totals. Owns: the limit of the floor,
and that each coercion is counted once. Never: begins or ends a transaction.
"""
