"""Who segments the images of a job: threads of this process or Dask workers, on one server or several."""
