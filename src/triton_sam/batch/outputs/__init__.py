"""The files that a job writes: label images and overlays with each result; COCO, GeoJSON and a report at its end.

``choosing`` knows them by their names, ``merge`` writes those of the end in one pass over the results.
It does not know how images are segmented, nor the job's state.
"""
