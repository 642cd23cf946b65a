"""Stacks: TIFF files, Zarr arrays and arrays with named dimensions as clips, and label volumes of what was found."""
