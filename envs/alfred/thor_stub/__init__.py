"""A process that stands in for AI2-THOR: the build's wire protocol, answered from a symbolic world.

Started by ai2thor's own client: ``Controller(local_executable_path=f"{sys.executable} -m envs.alfred.thor_stub")``.
It behaves as build 5.0.0 (commit f0825767) does where that could be read from its C# source, down to names of errors.
"""
