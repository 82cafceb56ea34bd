"""The node's web process: metrics, health and the page, read-only.

Takes: HTTP requests; facts from ``health``. Gives: OpenMetrics, JSON, the page. Owns: the addresses
of ``[web] listen``, and who may read there. Never: writes, waits for the engine without a bound,
loads Spark, NumPy or Arrow.

    __main__     the process: settings, signals, retries of addresses; start here
    listening    sockets and servers, plain on this machine and with TLS beyond it
    bounds       limits of one connection: time, size, number
    guard        what every request passes, and what every response carries
    visitors     logins from other machines
    app          the routes; later surfaces add theirs here
    checks       /health/live and /health/ready
    page, api    the page's readings, JSON and events; its files are in static/
"""
