"""What the scripts that check and time the decode core share: models and rows drawn anywhere alike, and comparisons."""
