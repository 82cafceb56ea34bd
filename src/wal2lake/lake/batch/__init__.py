"""Applies batches of the change log to Delta tables.

batchport  the port that apply uses batches    the port on Delta: stages a batch, chooses a method,
commits methods    the methods and their costs
"""
