"""Engine: the only room that touches a model's internals."""
