"""Many people at work: ``triton-sam bench users``, or ``python -m triton_sam.bench.users`` with little installed.

People hover while the mouse moves, pause, click, and open a new image every minute. ``schedule`` says when; ``person``
does it, over the connections of ``http_pool`` and ``websocket``, with the bytes of ``messages``. ``worker`` is one
load-generating process with many people, ``generator`` starts several. ``outcome`` has the figures, ``measure`` the
command.

All but ``measure`` need only numpy and Pillow, so that they run beside a bare Triton.
"""
