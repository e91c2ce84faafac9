"""Files that come from elsewhere: a model's config.json, and clusters and GPUs described by their data sheets."""
