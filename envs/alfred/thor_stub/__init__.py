"""Stand-in for AI2-THOR: a process with the build's wire protocol on top of a symbolic world.

ai2thor's own client starts it: ``Controller(local_executable_path=f"{sys.executable} -m envs.alfred.thor_stub")``. It
behaves as build 5.0.0 (commit f0825767), as far as its C# source shows, including names of errors.
"""
