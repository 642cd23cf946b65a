"""The routes of the service, a file for each group: masks, hover, images, information, the page.

From outside: the ``*_router`` functions, which ``service.app`` puts together. A route does not speak to Triton: the
gateway does.
"""
