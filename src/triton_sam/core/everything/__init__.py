"""Everything in an image: automatic masks from a grid of points, as Meta's generators define them.

From outside: ``options`` (parse), ``driver`` (run), ``candidates`` (what an engine may hand over), ``records`` and
``labels`` (the answer). Nothing here knows a model, a server or a network: a decoder is a function.
"""
