"""What a table's commits have done to its rows.

commits   a commit's actions: which files came, went, or lost rows (pure)
rows      the rows behind them, as INSERT, UPDATE and DELETE
"""
