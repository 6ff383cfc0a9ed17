"""The agent programs themselves, asked offline what they see in a repository. None is logged in, none asks a model."""
