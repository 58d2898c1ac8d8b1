"""`weights`: a model trained under noise (methods: gaussian, shaped, published, head)."""
