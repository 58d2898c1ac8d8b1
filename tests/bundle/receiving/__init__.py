"""What whoever receives a bundle does with it."""
