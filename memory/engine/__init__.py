"""Engine: the only package that accesses a model's internals."""
