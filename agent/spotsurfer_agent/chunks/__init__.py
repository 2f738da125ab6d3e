"""Content-addressed chunks of images and files."""
