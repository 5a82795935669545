"""What the command line decides, without a process or a socket."""
