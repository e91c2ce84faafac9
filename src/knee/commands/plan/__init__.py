"""The best parallel plan for a job."""
