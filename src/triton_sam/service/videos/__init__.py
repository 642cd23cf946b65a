"""Videos in the service: uploads, their frames on the disk, sessions with Triton, results, exports.

From outside: :class:`~.films.Films`, which holds the videos of this process, and what the routes call on a video.
"""
