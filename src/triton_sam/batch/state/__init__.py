"""What is on the disk of a job: its definition, its images and what became of them, its results, its lock."""
