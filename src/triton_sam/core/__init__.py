"""Images, prompts, masks and their geometry, as pure functions and values.

From outside: every module. Nothing here knows a model, a server or a network.
"""
