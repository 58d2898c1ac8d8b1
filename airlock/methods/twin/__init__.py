"""`twin`: what leaves is a model that was put together from many, not one that was trained."""
