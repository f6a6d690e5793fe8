"""The frame loop and the protocols between the front end and the backends."""
