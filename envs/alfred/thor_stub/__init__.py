"""Stand-in for AI2-THOR's build (its Unity executable): a process with the same protocol on top of a symbolic world.

ai2thor's own client starts it: ``Controller(local_executable_path=f"{sys.executable} -m envs.alfred.thor_stub")``. The
stand-in imitates build 5.0.0 (commit f0825767) according to its C# source, error names included.
"""
