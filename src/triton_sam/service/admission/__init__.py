"""Who is let in and how much at a time: tokens, rate limits, sizes, connections, full queues.

From outside: what ``service.app``, ``service.thread`` and the gateway put before the routes. It knows no route.
"""
