"""Batch jobs: masks for many images, that survive whatever happens on the way.

``job.BatchJob`` is all of it, ``state.status`` tells how far a job is. ``records`` has the data of the parts:
``inputs`` and ``prompts`` say what to do, ``executors`` do it, ``runner`` brings the results to ``state``, and
``outputs`` makes files of them. It is a client of servers, and knows nothing of what runs in them.
"""
