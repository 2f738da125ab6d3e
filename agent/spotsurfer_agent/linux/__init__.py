"""System calls and tables of the kernel. Only here: ptrace and userfaultfd."""
