"""`weights`: a model trained under noise (methods: gaussian)."""
