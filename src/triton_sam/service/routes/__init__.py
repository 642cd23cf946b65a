"""The HTTP routes and the hover WebSocket, one file for each group.

From outside: the ``*_router`` functions, which ``service.app`` includes. A route must not call Triton itself: the
gateway does.
"""
