"""`twin`: a generated model leaves; its parameters were drawn from the distribution over many trained models."""
