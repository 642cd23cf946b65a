"""The embedded Triton as a process: found, started, watched, restarted, stopped.

From outside: ``supervisor`` and ``process``; ``host`` checks the machine; ``in_flight`` counts requests across a kill.
It does not know what the models compute.
"""
