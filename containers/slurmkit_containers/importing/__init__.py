"""From a registry or an archive to an image file."""
