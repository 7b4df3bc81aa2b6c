"""Stand-in for AI2-THOR: a process that speaks the build's wire protocol and answers from a symbolic world.

ai2thor's own client starts it: ``Controller(local_executable_path=f"{sys.executable} -m envs.alfred.thor_stub")``. It
behaves as build 5.0.0 (commit f0825767) as far as that could be read from its C# source, including names of errors.
"""
