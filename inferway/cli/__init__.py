"""The operators' command line. It starts the services or calls them, and imports none of them."""
