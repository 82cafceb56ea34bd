"""The node's web process: metrics, health and the page, read-only.

Takes: HTTP requests; facts from ``health``. Gives: OpenMetrics, JSON, the page. Never: writes,
or waits for the engine without a bound.
"""
