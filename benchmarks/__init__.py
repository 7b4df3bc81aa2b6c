"""Benchmarks of stages and methods. Importing the package configures OpenMP; torch must be imported later."""

from keep_agent.startup import start_up

start_up()
