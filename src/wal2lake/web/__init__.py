"""The node's web process: metrics, health checks, the page and alerts, read-only.

Takes: HTTP requests; facts from ``health``. Gives: OpenMetrics, JSON, the page, alerts, the Iceberg
catalog. Owns: the addresses of ``[web] listen``, and access to them. Never: changes the node,
waits for the engine without a bound, loads Spark, NumPy or Arrow.

    __main__     the process: settings, signals, retries of addresses; start here
    reading      one reading of the node a second, for all that follows
    listening    sockets and servers, plain on this machine and with TLS beyond it
    bounds       limits of one connection: time, size, number
    guard        what every request passes, and what every response carries
    visitors     logins from other machines
    app          the routes
    checks       /health/live and /health/ready
    metrics/     /metrics
    iceberg/     /v1/: the tables, for Iceberg's clients
    page, api    the page's readings, JSON and events; its files are in static/
    alerts/      messages when a problem begins and when it ends
"""
