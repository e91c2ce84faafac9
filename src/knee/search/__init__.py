"""The best plan of a job, and the number of GPUs worth having."""
