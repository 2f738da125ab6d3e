"""What a job needs beside its command: objects and files from elsewhere, and shared file systems."""
