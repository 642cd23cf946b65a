"""The Triton server process: finding, starting, supervising, updating and stopping it.

From outside: ``supervisor``, ``process`` and ``pings``; ``host`` checks the machine; ``in_flight`` counts the requests
of a model's process so that the count survives a kill; ``stop_signals`` turns Ctrl-C into a flag. It does not know what
the models compute.
"""
